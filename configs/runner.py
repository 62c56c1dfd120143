"""Where independent work of a run is done: one after the other, or side by side by several workers.

An entry point `runner.NAME` brings a kind for other machines: a subclass of `RunnerConfig` with its own task runner.
"""

from typing import Any, Literal

from pydantic import Field

from gauntlet.core.frozen import Kind
from gauntlet.runtime.resources import usable_threads


class RunnerConfig(Kind):
    """What does the work of candidates. The main line, and every measurement, stays in the process of the run."""

    workers: int | None = Field(None, ge=1, description="works at the same time; by default one for each core")

    @property
    def size(self) -> int:
        """How many workers there are on this machine."""
        return self.workers or usable_threads()

    @property
    def is_serial(self) -> bool:
        """Whether all work is done one after the other, in the run's own thread."""
        return False

    def task_runner(self) -> Any:
        """Return Prefect's task runner of a kind that is not one of the core's."""
        raise NotImplementedError

    def size_of(self, _started: Any) -> int:
        """Return how many works a task runner that was started does at the same time; a cluster is connected to."""
        return self.size


class LocalRunner(RunnerConfig):
    """Threads of the run itself, or processes on this machine."""

    kind: Literal["threads", "processes"] = "threads"
    workers: int | None = Field(
        None, ge=1, description="works at the same time; by default 1 thread, or a process for each core"
    )

    @property
    def size(self) -> int:
        """How many workers there are."""
        return 1 if self.kind == "threads" and self.workers is None else super().size

    @property
    def is_serial(self) -> bool:
        """Whether there is one thread, which is then the run's own."""
        return self.kind == "threads" and self.size == 1
