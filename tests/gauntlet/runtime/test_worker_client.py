"""Workers that crash, hang or send invalid replies: each failure has a clear message, and no process is left."""

import contextlib
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Never

import numpy as np
import psutil
import pytest
from harness import until

import flows
from gauntlet.runtime.worker import ENGINE, WORKER_COMMAND
from gauntlet.runtime.worker_client import SHORT_WAIT, WorkerClient, WorkerFailed, WorkerTemplate

pytestmark = pytest.mark.usefixtures("no_process_is_left")
READ = "import sys, os, time, signal, json; sys.stdin.readline(); "


@contextmanager
def worker(code: str):
    with WorkerClient(command=(sys.executable, "-c", READ + code)) as client:
        yield client


def load(client: WorkerClient, timeout_s: float = 30) -> float:
    return client.load(Path("m.onnx"), Path("i.npz"), 1, timeout_s)["load_ms"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", f"was killed by signal {int(signal.SIGSEGV)}"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by signal 9"),
        ("os.abort()", "was killed by signal 6"),
        ("import ctypes; ctypes.string_at(0)", "was killed by signal 11"),
        ("sys.exit(7)", "ended with code 7"),
        ("sys.exit('out of memory: 3 GB asked')", "ended with code 1: out of memory: 3 GB asked"),
        (
            "sys.stderr.write('  what():  std::bad_alloc'); sys.stderr.flush(); os.abort()",
            "exceeds the memory limit: the worker was killed by signal 6: what():  std::bad_alloc",
        ),
        ("raise ValueError('no such provider')", "ended with code 1: ValueError: no such provider"),
        ("", "ended with code 0"),
        ("print('hello', flush=True); time.sleep(60)", "the worker sent an invalid reply: b'hello"),
        ("print('{\"load_ms\": ', flush=True); time.sleep(60)", "the worker sent an invalid reply"),
        ("print([1], flush=True); time.sleep(60)", "invalid reply: b'[1]"),
        ("print(json.dumps({'error': 'refused: opset 99'}), flush=True); time.sleep(60)", "refused: opset 99"),
    ],
)
def test_client_tells_what_happened_when_the_worker_dies_or_sends_an_invalid_reply(code: str, told: str) -> None:
    with worker(code) as client, pytest.raises(WorkerFailed) as caught:
        load(client)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(60)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
        "sys.stdout.write('{\"load_'); sys.stdout.flush(); time.sleep(60)",
        "[(sys.stdout.write('x'), sys.stdout.flush(), time.sleep(0.05)) for _ in range(1200)]",
    ],
    ids=["silent", "stubborn", "half a line", "drop by drop"],
)
def test_client_ends_the_worker_when_it_gives_no_answer_in_time(code: str) -> None:
    with worker(code) as client:
        with pytest.raises(WorkerFailed, match=r"no reply to 'load' within 0\.5 s; the worker was stopped"):
            load(client, timeout_s=0.5)
        assert client._process.wait(timeout=60) == -signal.SIGKILL


def test_client_ends_what_the_worker_started_and_does_not_wait_for_it() -> None:
    """A child that holds the worker's pipes kept the whole run waiting."""
    with worker("p = os.fork()\nif p == 0: time.sleep(60)\nprint(json.dumps({'load_ms': p}), flush=True)") as client:
        child = psutil.Process(int(load(client)))
    assert psutil.wait_procs([child], timeout=60)[1] == []


def test_client_tells_the_last_line_when_the_worker_floods_its_errors() -> None:
    flood = "sys.stderr.write('x' * 99 + chr(10)) or [sys.stderr.write('y' * 99 + chr(10)) for _ in range(200000)]"
    with worker(f"{flood}; sys.exit('the last word')") as client, pytest.raises(WorkerFailed, match="the last word"):
        load(client)


def test_worker_is_not_told_to_let_threads_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flows.SHORT_WAIT == SHORT_WAIT
    for name, value in SHORT_WAIT.items():
        monkeypatch.setenv(name, value)
    told = "' '.join(name for name in os.environ if name in ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')) or None"
    with worker(f"print(json.dumps({{'load_ms': {told}}}), flush=True)") as client:
        assert load(client) is None


@pytest.mark.slow
def test_client_does_not_wait_for_ever_when_the_worker_closes_its_output_and_lives() -> None:
    with worker("os.close(1); time.sleep(60)") as client, pytest.raises(WorkerFailed, match="closed its output"):
        load(client)


def test_client_tells_the_death_when_it_asks_a_dead_worker_again() -> None:
    with worker("print(json.dumps({'load_ms': 1.5}), flush=True); sys.stdin.readline(); sys.exit(3)") as client:
        assert load(client) == 1.5
        for _ in range(2):
            with pytest.raises(WorkerFailed, match="ended with code 3"):
                client.run(1, 1, 30)


def test_client_reads_all_of_it_when_the_answer_is_longer_than_a_pipe() -> None:
    code = "print(json.dumps({'samples_ms': [0.125] * 100000, 'peak_rss_bytes': 1}), flush=True); time.sleep(60)"
    with worker(code) as client:
        assert client.run(1, 1, 30)["samples_ms"] == [0.125] * 100000


def test_reaped_worker_is_not_signalled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker("sys.exit(7)") as client:
        with pytest.raises(WorkerFailed, match="ended with code 7"):
            load(client)
        killed: list[int] = []
        monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    assert killed == []


def test_child_of_a_worker_ends_when_the_worker_dies(tmp_path: Path) -> None:
    note = str(tmp_path / "pid")
    child = "import subprocess as s; c = s.Popen(['sleep', '60'], stdout=s.DEVNULL, stderr=s.DEVNULL)"
    with worker(f"{child}; open({note!r}, 'w').write(str(c.pid)); os._exit(1)") as client, pytest.raises(WorkerFailed):
        load(client)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(Path(note).read_text())).wait(5)


def test_worker_dies_with_a_signal_when_it_is_killed_in_the_middle(trained, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", input=np.ones((4, 3, 32, 32), np.float32))
    with WorkerClient() as client:
        client.load(trained.path, tmp_path / "inputs.npz", 1, 60)
        os.kill(client._process.pid, signal.SIGSEGV)
        with pytest.raises(WorkerFailed, match="was killed by signal 11"):
            client.run(1, 1000, 60)


def test_copies_of_a_template_work_and_tell_how_they_end(trained, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", input=np.ones((4, 3, 32, 32), np.float32))
    with WorkerTemplate(WORKER_COMMAND, ENGINE) as template:
        with WorkerClient(template=template) as one, WorkerClient(template=template) as other:
            template.close()
            for client in (one, other):
                client.load(trained.path, tmp_path / "inputs.npz", 1, 60)
            os.kill(one._process.pid, signal.SIGSEGV)
            with pytest.raises(WorkerFailed, match="was killed by signal 11"):
                one.run(1, 1, 60)
            assert len(other.run_calls(1, 3, 60)["samples_ms"]) == 3
            other.request({"do": "memory"}, 60)  # until then, it is stopped
            other._stdin.close()
            assert other._process.wait(60) == 0
        with pytest.raises(WorkerFailed, match="template has ended"):
            WorkerClient(template=template)


STOPPED = """
import sys, time
from pathlib import Path
from gauntlet.runtime.worker import ENGINE, WORKER_COMMAND
from gauntlet.runtime.worker_client import WorkerClient, WorkerTemplate

template = WorkerTemplate(WORKER_COMMAND, ENGINE)
client = WorkerClient(template=template)
template.close()
client.load(Path(sys.argv[1]), Path(sys.argv[2]), 2, 60)
client.run(1, 10, 60)
print(client._process.pid, template._process.pid, flush=True)
time.sleep(600)
"""


def test_worker_that_is_stopped_ends_when_its_client_is_killed(trained, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", input=np.ones((4, 3, 32, 32), np.float32))
    words = [sys.executable, "-c", STOPPED, str(trained.path), str(tmp_path / "inputs.npz")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in client.stdout.readline().split()]
        with contextlib.suppress(AssertionError):
            until(lambda: processes[0].status() == psutil.STATUS_STOPPED, 30)
        stopped = processes[0].status()
        client.kill()
    assert stopped == psutil.STATUS_STOPPED
    assert psutil.wait_procs(processes, timeout=60)[1] == []


def test_template_that_does_not_copy_itself_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.runtime.worker_client.COPY_TIMEOUT_S", 0.2)
    with (
        WorkerTemplate((sys.executable, "-c", "import time; time.sleep(60)"), ENGINE) as template,
        pytest.raises(WorkerFailed, match="does not copy itself"),
    ):
        WorkerClient(template=template)


class InterruptedTemplate(WorkerTemplate):
    """A signal comes once it has copied itself."""

    def copy(self, *streams: int) -> Never:
        super().copy(*streams)
        raise KeyboardInterrupt


def test_copy_whose_client_is_interrupted_while_it_starts_ends_with_its_template() -> None:
    with pytest.raises(KeyboardInterrupt) as interrupted, InterruptedTemplate(WORKER_COMMAND, ENGINE) as template:
        WorkerClient(template=template)
    assert interrupted.tb is not None  # it holds the client, as that of a signal does until the process ends
    assert template._process.returncode == 0  # it is killed where it is waited for in vain
