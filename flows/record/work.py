"""The work of one stage: done at most once for the same content, in whatever process shares the home."""

import inspect
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.record.benchmark_slot import benchmark_slot
from flows.record.home import Home
from flows.record.journal import Journal
from flows.record.locks import host, locked
from flows.record.measure import ResourceUsage
from flows.record.progress import write_progress
from flows.record.result_cache import ResultCache
from gauntlet.core.errors import PipelineError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace, steps_log
from gauntlet.runtime.operator_libraries import with_operator_libraries

log = logging.getLogger("gauntlet")


class WorkerError(Exception):
    """What went wrong in another process, as text: not every library's exceptions can travel."""


@dataclass(frozen=True)
class Work:
    """The work of one stage on one line, with everything that a worker needs to do it: paths and digests, no models."""

    run_id: str
    root: Path
    """Of the home."""
    store: str
    """Address of the store that machines share, if there is one."""
    label: str
    candidate: str | None
    key: str
    measured: bool
    """Whether it is done alone on the host."""
    reusable: bool
    """Whether the result of the same work may be taken instead."""
    resumable: bool
    """Whether it may continue what a killed run has begun."""
    function: Callable[..., Report[Any]]
    config: Any
    inputs: Mapping[str, Any]

    def run(self) -> Report[Any]:
        """Return the report of the same work where it is known; otherwise do the work, in one process at a time."""
        home = Home(self.root, self.store)
        journal = Journal(home.runs / self.run_id / "journal.jsonl")
        named = {"stage": self.function.__name__, "candidate": self.candidate, "key": self.key}
        journal.append("work_started", **named, host=socket.gethostname(), pid=os.getpid())
        on_wait = self._waits("for another run that does the same work")
        with self._shown(), locked(home.locks / self.key, on_wait=on_wait):
            report = self._cached(home)
            if report is None:
                report = self._do(home, journal)
        journal.append("work_finished", **named, cached=report.cached, seconds=report.seconds)
        return report

    def _cached(self, home: Home) -> Report[Any] | None:
        if not self.reusable:
            return None
        report_type = inspect.get_annotations(self.function, eval_str=True)["return"]
        return ResultCache(home.results, home.store).load(self.key, report_type)

    def _do(self, home: Home, journal: Journal) -> Report[Any]:
        waits = self._waits("until this host is free")
        with host(alone=self.measured, on_wait=waits), benchmark_slot() if self.measured else nullcontext():
            if self.measured:
                journal.append("alone", stage=self.function.__name__)
            workspace = Workspace(home.store, home.work / self.key)
            if not self.resumable:
                shutil.rmtree(workspace.folder, ignore_errors=True)
            workspace.folder.mkdir(parents=True, exist_ok=True)
            with ResourceUsage() as usage:
                report = self.function(self.config, workspace, **self.inputs)
            report = report.replace(seconds=usage.seconds, peak_rss_bytes=usage.peak_rss_bytes)
            if not (self.measured or report.timed):
                ResultCache(home.results, home.store).save(self.key, report)
            shutil.rmtree(workspace.folder, ignore_errors=True)
        return report

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Tell the terminal what is at work."""
        steps_log.info("", extra={"work": self.key, "began": self.label})
        try:
            yield
        finally:
            steps_log.info("", extra={"work": self.key, "ended": self.label})

    def _waits(self, reason: str) -> Callable[[], None]:
        return lambda: log.info("%s: waiting %s", self.label, reason)


@dataclass(frozen=True)
class WorkElsewhere:
    """Work for another process, which inherits neither the environment nor the loggers of the run's."""

    work: Work
    progress: Path
    """Where it writes what it would have logged; a `ProgressReader` reads it."""
    libraries: tuple[Path, ...]
    """Of custom operators."""

    def run(self) -> Report[Any]:
        """Return the report; `WorkerError` for any error that is not one of this project's."""
        with write_progress(self.progress), with_operator_libraries(self.libraries):
            try:
                return self.work.run()
            except PipelineError as error:
                raise type(error)(str(error)) from None
            except Exception as error:
                raise WorkerError(f"{type(error).__name__}: {error}") from error
