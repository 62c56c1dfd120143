"""The sandbox with children that do everything a child should not."""

import ctypes
import operator
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.workspace import Workspace
from gauntlet.onnx_model.graph import read_untrusted_graph
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess

pytestmark = pytest.mark.usefixtures("no_process_is_left")
GIGABYTE = 1_000_000_000
LIMITS = {"timeout_s": 20.0, "memory_bytes": GIGABYTE}


def test_child_answers_and_tells_its_cost() -> None:
    done = run_in_subprocess(operator.add, "a", "b", **LIMITS)
    assert done.value == "ab"
    assert 1e6 < done.peak_rss_bytes < 1e8  # its own memory: this process, with its libraries, has more


@pytest.mark.parametrize(
    ("function", "arguments", "ending", "words"),
    [
        (ctypes.string_at, (0,), "crash", ["signal 11"]),
        (os.abort, (), "crash", ["signal 6"]),
        (os._exit, (7,), "crash", ["exit code 7"]),
        (operator.truediv, (1, 0), "error", ["ZeroDivisionError", "division by zero"]),
        (bytes, (60 * GIGABYTE,), "memory", ["more than 1 GB"]),
        (int, ("many\nlines",), "error", ["ValueError", "many"]),
        (exec, ("import sys; sys.exit(5)",), "crash", ["exit code 5"]),
    ],
    ids=["segfault", "abort", "exit", "raise", "reserve", "two-lines", "sys-exit"],
)
def test_child_that_fails_is_one_clear_error(function, arguments, ending: str, words: list[str]) -> None:
    with pytest.raises(SubprocessFailed) as caught:
        run_in_subprocess(function, *arguments, **LIMITS)
    assert caught.value.ending == ending
    assert caught.value.exit_code == StageError.exit_code == 3
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_child_that_hangs_is_ended_in_time() -> None:
    start = time.monotonic()
    with pytest.raises(SubprocessFailed, match=r"timed out after 0\.5 s") as caught:
        run_in_subprocess(time.sleep, 60, timeout_s=0.5, memory_bytes=GIGABYTE)
    assert caught.value.ending == "time"
    assert time.monotonic() - start < 30  # it would have slept for 60


def test_child_that_fills_memory_slowly_is_ended_by_the_watch() -> None:
    code = "import time; heap = []\nwhile True: heap.append(bytearray(b'x') * 10_000_000); time.sleep(0.01)"
    with pytest.raises(SubprocessFailed, match=r"more than 0\.2 GB") as caught:
        run_in_subprocess(exec, code, timeout_s=60, memory_bytes=200_000_000)
    assert caught.value.ending == "memory"
    assert 200e6 < caught.value.peak_rss_bytes < 400e6


def test_errors_of_this_project_pass_through(tmp_path: Path) -> None:
    file = tmp_path / "no.onnx"
    file.write_bytes(b"hello")
    with pytest.raises(StageError, match=r"no\.onnx: not a readable ONNX model") as caught:
        run_in_subprocess(read_untrusted_graph, file, **LIMITS)
    assert type(caught.value) is StageError
    with pytest.raises(ConfigError, match="wrong"):
        run_in_subprocess(exec, "from gauntlet.core.errors import ConfigError; raise ConfigError('wrong')", **LIMITS)


def test_child_of_a_child_does_not_outlive_it() -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    before = {p.pid for p in psutil.process_iter()}
    run_in_subprocess(exec, code, **LIMITS)
    sleepers = [p for p in psutil.process_iter(["cmdline"]) if "time.sleep(60)" in " ".join(p.info["cmdline"] or [])]
    assert psutil.wait_procs([p for p in sleepers if p.pid not in before], timeout=120)[1] == []


def test_child_does_not_import_what_lies_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('the wrong tasks')")
    (tmp_path / "pickle.py").write_text("raise SystemExit('the wrong pickle')")
    monkeypatch.chdir(tmp_path)
    assert run_in_subprocess(os.getcwd, **LIMITS).value == str(tmp_path)


def test_starting_a_child_is_cheap() -> None:
    loaded = run_in_subprocess(eval, "sorted(__import__('sys').modules)", **LIMITS).value
    assert not {"numpy", "onnx", "onnxruntime", "torch", "pydantic", "rich"} & set(loaded)
    assert "gauntlet.runtime.subprocess_runner" in loaded
    assert Workspace.__module__ in sys.modules  # as this process has
