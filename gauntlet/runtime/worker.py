"""Run one model in a process of its own, isolated from crashes, hangs and leaks.

It reads one JSON object per line on standard input, and replies to each with one on standard output:

    {"do": "check_available", "options"}                      -> {"unavailable": a reason, or null}
    {"do": "check_operators", "model", "options"}             -> {"runtime", "nodes", "elsewhere", "refused"}, or {}
    {"do": "load", "model", "inputs", "threads", "options"}   -> {"load_ms", "runtime", "on_processor", "fixed_batch"}
    {"do": "run", "batch", "at_least_ms", "calls", "untimed", "realtime", "clock", "waits"}
                                                              -> {"samples_ms", "peak_rss_bytes", "repeatability_db"}
    {"do": "write_outputs", "batch", "path", "inputs"}        -> {"outputs": names}, and the arrays in the file
    {"do": "placement"}                                       -> see `gauntlet.runtime.engines.base.Engine.placement`
    {"do": "profile", "batch", "calls", "folder"}             -> {"trace": file}
    {"do": "memory"}                                          -> {"rss_bytes", "peak_rss_bytes"}

`run` times calls for `at_least_ms`, or so many `calls`, after some that are `untimed`: the first call after another
process has run finds cold caches. With `realtime`, no ordinary program interrupts it; `clock` is `wall`
or `processor`, for the processor time of all threads. It `waits` until its threads, which may spin, are idle.

`inputs` is an `.npz` file of arrays (n, ...) by input; a call takes the first samples. `write_outputs` takes those of
`load` unless it is given others. `options` are a target's:
`engine` is the module of the runtime, `memory_bytes` a limit, by default `MEMORY_SHARE` of what this process may use.
`repeatability_db` is the worst signal-to-noise ratio so far between a timed output and the first one at that batch
size. An error is reported as {"error": message}.

`check_operators` loads the model and calls nothing. `nodes` counts those of the graph as it is, `elsewhere` those that
the target's device does not take, by where they run and by operator; `refused` is why the runtime does not load the
model, or null. A runtime that cannot say it replies nothing.

This file also runs in another Python environment, which has numpy and a runtime but not this project.

With the module of an engine as its argument, the process is a template: see `fork_workers`.
"""

import contextlib
import importlib
import json
import math
import os
import re
import resource
import select
import signal
import socket
import struct
import sys
import types
from pathlib import Path
from time import perf_counter_ns, process_time
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

if TYPE_CHECKING:
    from gauntlet.core.arrays import Array, NamedArrays
    from gauntlet.runtime.batched_inference import BatchedInference
    from gauntlet.runtime.engines.base import Engine

ENGINE = "gauntlet.runtime.engines.ort"
WORKER_COMMAND = (sys.executable, "-P", "-m", "gauntlet.runtime.worker")
MEMORY_SHARE = 0.5
"""Default memory limit, as a share of what this process may use: other workers and the run need memory too."""
RESERVED_BYTES = 1 << 30
"""On top of the memory limit, for stacks and arenas that are reserved long before they are used."""
NO_MEMORY = re.compile("bad.?alloc|MemoryError|allocate memory|out of memory|not enough memory", re.IGNORECASE)
"""The runtimes' messages for refused memory, for which they have no exception of their own."""
PRELOADED = ("gauntlet.runtime.batched_inference", "gauntlet.runtime.realtime", "gauntlet.runtime.resources")
"""What a template imports besides the engine: all that a request needs."""
STATUS = struct.Struct("qqd")
"""What is written of a copy: its process id and zeros, and then 0, its exit code and the processor seconds it took."""


class Worker:
    """The loaded model and its inputs."""

    engine: "Engine"
    calls: "BatchedInference"
    memory_bytes = 0
    """The memory limit, once a model is loaded."""

    def check_available(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return why the target cannot run here, or None."""
        module = importlib.import_module(options.get("engine", ENGINE))
        reason = module.unavailable_reason(options) if hasattr(module, "unavailable_reason") else None
        return {"unavailable": reason}

    def check_operators(self, model: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return which nodes the target does not take."""
        from gauntlet.runtime.resources import usable_memory_bytes

        limit_memory(int(MEMORY_SHARE * usable_memory_bytes()))
        module = importlib.import_module(options.get("engine", ENGINE))
        knows = hasattr(module, "check_operators")
        checked: dict[str, Any] = module.check_operators(Path(model), options) if knows else {}
        return checked

    def load(self, model: str, inputs: str, threads: int, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Load the model and read the inputs."""
        from gauntlet.runtime.resources import usable_memory_bytes

        options = options or {}
        self.memory_bytes = int(options.get("memory_bytes") or MEMORY_SHARE * usable_memory_bytes())
        limit_memory(self.memory_bytes)
        module = importlib.import_module(options.get("engine", ENGINE))
        start = perf_counter_ns()
        self.engine = module.load_engine(Path(model), threads, options)
        load_ms = (perf_counter_ns() - start) / 1e6
        self._read(inputs)
        self.first: dict[int, list[Array]] = {}
        self.repeatability_db = math.inf
        about = {"runtime": self.engine.runtime, "on_processor": self.engine.on_processor}
        return {"load_ms": load_ms, "fixed_batch": self.calls.fixed_batch, **about}

    def run(
        self,
        batch: int,
        at_least_ms: float = 0,
        calls: int | None = None,
        *,
        untimed: int = 0,
        realtime: bool = False,
        clock: str = "wall",
        waits: bool = True,
    ) -> dict[str, Any]:
        """Call the model at least once and for at least the given time, or so many times; return the durations."""
        from gauntlet.runtime.realtime import realtime_turn, wait_for_idle_threads

        feed = self._feed(batch)
        with realtime_turn() if realtime else contextlib.nullcontext():
            for _ in range(untimed):
                self.engine.measure(feed)
            samples_ms, last = self.engine.measure(feed, at_least_ms, calls, clock)
        first = self.first.setdefault(batch, last)
        self.repeatability_db = min(self.repeatability_db, *map(sqnr_db, last, first))
        peak = self.memory()["peak_rss_bytes"]
        if waits:
            wait_for_idle_threads()
        return {"samples_ms": samples_ms, "repeatability_db": self.repeatability_db, "peak_rss_bytes": peak}

    def write_outputs(self, batch: int, path: str, inputs: str | None = None) -> dict[str, Any]:
        """Run all samples and write the outputs by name, shape (n, ...), to an `.npz` file."""
        from gauntlet.core.arrays import write_arrays

        if inputs is not None:
            self._read(inputs)
        outputs = self.calls.run(batch)
        write_arrays(Path(path), outputs)
        return {"outputs": list(outputs)}

    def placement(self) -> dict[str, Any]:
        """Return what runs where, for the smallest batch."""
        return self.engine.placement(self._feed(self.calls.batch(1)))

    def profile(self, batch: int, calls: int, folder: str) -> dict[str, Any]:
        """Write the runtime's trace of some calls."""
        return {"trace": self.engine.profile(self._feed(batch), calls, folder)}

    def memory(self) -> dict[str, Any]:
        """Return the resident memory of this process and its children."""
        from gauntlet.runtime.resources import peak_rss_bytes

        pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
        children = self.engine.children_rss_bytes()
        rss = pages * resource.getpagesize() + children
        return {"rss_bytes": rss, "peak_rss_bytes": peak_rss_bytes() + children}

    def _read(self, inputs: str) -> None:
        from gauntlet.runtime.batched_inference import batched_inference

        with np.load(inputs, allow_pickle=False) as file:
            samples = {name: file[name] for name in file.files}
        self.engine.set_samples(samples)
        self.calls = batched_inference(self.engine, samples)

    def _feed(self, batch: int) -> "NamedArrays":
        if self.calls.batch(batch) != batch:
            raise ValueError(f"the model takes batches of {self.calls.batch(batch)}, not of {batch}")
        return {name: np.asarray(array, order="C") for name, array in self.calls.feed(0, batch).items()}


def sqnr_db(actual: "Array", expected: "Array") -> float:
    """Return the signal-to-noise ratio of an output: inf where both are equal, -inf where they cannot be compared."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return -math.inf
    if np.array_equal(actual, expected, equal_nan=actual.dtype.kind == "f"):
        return math.inf
    if actual.dtype.kind not in "fiub":
        return -math.inf
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    signal, noise = float(np.sum(b**2)), float(np.sum((a - b) ** 2))
    return 10 * math.log10(signal / noise) if signal > 0 and 0 < noise < math.inf else -math.inf


def limit_memory(memory_bytes: int) -> None:
    """Limit the memory that may be written to, not what is only reserved (Linux 4.7)."""
    limit = memory_bytes + RESERVED_BYTES
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def serve(requests: TextIO, replies: TextIO) -> None:
    """Reply to requests until there are no more."""
    worker = Worker()
    for line in requests:
        request = json.loads(line)
        reply: dict[str, Any]
        try:
            reply = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # the runtimes' own exceptions share no public base
            name, text = type(error).__name__, str(error)
            if (
                name != "StageError"
                and not isinstance(error, (OSError, ValueError))
                and type(error) is not RuntimeError
            ):
                text = f"{name}: {text}"
            if worker.memory_bytes and NO_MEMORY.search(text):
                text = f"exceeds the memory limit ({worker.memory_bytes / 1e9:.3g} GB): {text}"
            reply = {"error": text}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def fork_workers(requests: socket.socket, engine: str) -> bool:
    """Fork a worker for each message of a socket until it is closed; return True in a worker, False at the end.

    A message brings four files: standard input, output and error of the worker, and one to which its `STATUS` is
    written when it begins and when it has ended.
    """
    for module in (engine, *PRELOADED):
        with contextlib.suppress(Exception):  # a worker tells when it needs it
            importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that wait for the workers
    while (received := socket.recv_fds(requests, 1, 4))[0]:
        *streams, status = received[1]
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if worker := os.fork():
                os.closerange(0, status)
                if _nobody_reads(status, worker):
                    os.killpg(worker, signal.SIGKILL)
                _, code, used = os.wait4(worker, 0)
                seconds = used.ru_utime + used.ru_stime + process_time()
                os.write(status, STATUS.pack(0, os.waitstatus_to_exitcode(code), seconds))
                os._exit(0)
            os.setsid()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.write(status, STATUS.pack(os.getpid(), 0, 0))
            os.closerange(3, status + 1)
            requests.detach()
            return True
        for file in received[1]:
            os.close(file)
    with contextlib.suppress(ChildProcessError):  # when all have ended
        os.wait()
    return False


def _nobody_reads(status: int, worker: int) -> bool:
    """Wait until a worker ends, or who has asked for it has: a worker that is stopped would not notice that."""
    changes = select.poll()
    changes.register(status, 0)  # of a pipe that nobody reads, an error is told unasked
    try:
        changes.register(os.pidfd_open(worker), select.POLLIN)
    except OSError:  # before Linux 5.3
        return False
    return any(file == status for file, _ in changes.poll())


if __name__ == "__main__":
    if not __package__:  # started as a file: only this project's modules are importable from its folder
        for name in ("gauntlet", "wings"):
            sys.modules[name] = package = types.ModuleType(name)
            package.__path__ = [str(Path(__file__).resolve().parents[2] / name)]
    if sys.argv[1:] and not fork_workers(socket.socket(fileno=os.dup(0)), sys.argv[1]):
        os._exit(0)  # without the work of an orderly end
    with contextlib.suppress(OSError):  # when memory runs out, Linux shall end this process, not the run
        Path("/proc/self/oom_score_adj").write_text("1000")
    # What a library prints on standard output must not mix with the replies.
    private = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, private)
