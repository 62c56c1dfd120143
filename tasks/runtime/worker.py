"""One candidate in a process of its own: a crash, a hang or a leak costs this process and nothing else.

It reads one JSON object a line on standard input and answers each with one on standard output:

    {"do": "load", "model": ..., "inputs": ..., "threads": ...}   -> {"load_ms": ...}
    {"do": "run", "batch": ..., "at_least_ms": ...}               -> {"samples_ms": [...], "peak_rss_bytes": ...}

`inputs` is an `.npz` file with one array an input, shape (n, ...); a call takes its first samples. An error is answered
with {"error": ...}. It imports numpy and the runtime, and no more.
"""

import json
import os
import resource
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TextIO

import numpy as np

from tasks.errors import StageError
from tasks.runtime.calls import calls
from tasks.runtime.session import open_session


class Worker:
    """The loaded model and its inputs."""

    def load(self, model: str, inputs: str, threads: int) -> dict[str, Any]:
        """Build the session and read the inputs."""
        start = perf_counter_ns()
        self.session = open_session(Path(model), threads=threads)
        load_ms = (perf_counter_ns() - start) / 1e6
        with np.load(inputs, allow_pickle=False) as file:
            self.calls = calls(self.session, {name: file[name] for name in file.files})
        self.names = [output.name for output in self.session.get_outputs()]
        return {"load_ms": load_ms}

    def run(self, batch: int, at_least_ms: float) -> dict[str, Any]:
        """Call the model again and again, at least once and for at least the given time; return every duration."""
        if self.calls.batch(batch) != batch:
            raise StageError(f"the model takes batches of {self.calls.batch(batch)}, not of {batch}")
        feed = {name: np.ascontiguousarray(array) for name, array in self.calls.feed(0, batch).items()}
        run, names = self.session.run, self.names
        samples: list[int] = []
        end = perf_counter_ns() + int(at_least_ms * 1e6)
        while True:
            start = perf_counter_ns()
            run(names, feed)
            now = perf_counter_ns()
            samples.append(now - start)
            if now >= end:
                break
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"samples_ms": [ns / 1e6 for ns in samples], "peak_rss_bytes": peak}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more."""
    worker = Worker()
    for line in requests:
        request = json.loads(line)
        try:
            answer = worker.load(**request) if request.pop("do") == "load" else worker.run(**request)
        except (StageError, OSError, RuntimeError, ValueError) as error:
            answer = {"error": str(error)}
        except Exception as error:  # the runtime's own exceptions share no public base
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # What a library prints on standard output must not mix with the answers.
    private = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, private)
