"""The work of one stage: done at most once for the same content, in whatever process shares the home."""

import hashlib
import inspect
import logging
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from types import MethodType
from typing import Any

from pydantic import ValidationError

from flows.record.benchmark_slot import benchmark_slot
from flows.record.cache_key import cache_key
from flows.record.home import Home
from flows.record.journal import WAITED, Journal
from flows.record.locks import host, locked
from flows.record.progress import write_progress
from gauntlet.core.artifact import Store, sha256_of, write_atomically
from gauntlet.core.errors import PipelineError, StageError
from gauntlet.core.report import Report
from gauntlet.core.stage import traits_of
from gauntlet.core.workspace import Workspace, steps_log
from gauntlet.datasets.directory_index import DirectoryState
from gauntlet.runtime.operator_libraries import with_operator_libraries
from gauntlet.runtime.resources import ResourceUsage


@dataclass(frozen=True)
class FileContent:
    """The content of a file or folder, and what else the system changes with any write to it or renaming of it."""

    sha256: str
    status: tuple[int, ...] = ()
    """Number of the file, size, time of the content, and time of the last change, in ns; none of a folder."""


def input_files(inputs: Any) -> dict[str, FileContent]:
    """Return the content of each of the user's files by path. A function of files counts as what it returns now."""
    match inputs:
        case Path():
            return {str(inputs): _content(inputs)}
        case DirectoryState():
            return {inputs.path: FileContent(inputs.sha256)}
        case Mapping():
            return input_files(tuple(inputs.values()))
        case tuple() | list():
            return {path: content for each in inputs for path, content in input_files(each).items()}
        case MethodType():
            return input_files(inputs())
    return {}


def _content(path: Path) -> FileContent:
    if not path.is_file():
        return FileContent("missing")
    status = os.stat(path)  # noqa: PTH116 - before the content is read, so that a write in between counts
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return FileContent(sha256_of([path]), (status.st_ino, status.st_size, *times))


RECORD = re.compile(rb'\{"sha256": "(\w{64})", "report": (.*)\}', re.DOTALL)


def _digest(key: str, report: bytes) -> str:
    return hashlib.sha256(key.encode() + report).hexdigest()


class ResultCache:
    """A folder of reports, behind which are those of other machines, where the store is shared."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store

    def load(self, key: str, report_type: Any) -> Report[Any] | None:
        """Return the report of earlier work, or None where there is none or an artifact of it is not intact."""
        path = self.folder / f"{key}.json"
        here = path.is_file()
        text = path.read_bytes() if here else self.store.published(f"results/{key}.json")
        if text is None:
            return None
        record = RECORD.fullmatch(text)
        if record is None or record[1].decode() != _digest(key, record[2]):  # damaged, or of other work
            return None
        try:
            report: Report[Any] = report_type.model_validate_json(record[2])
        except ValidationError:  # written for another version of the report: the work is repeated
            return None
        if not all(map(self.store.is_intact, report.artifacts.values())):
            return None
        if here:
            self.store.publish(f"results/{key}.json", text.decode())
        else:
            write_atomically(path, text.decode())
        return report.replace(cached=True)

    def save(self, key: str, report: Report[Any]) -> None:
        """Save a report; a reader sees all of it or nothing."""
        content = report.model_dump_json(indent=1)
        text = f'{{"sha256": "{_digest(key, content.encode())}", "report": {content}}}'
        write_atomically(self.folder / f"{key}.json", text)
        self.store.publish(f"results/{key}.json", text)


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
        """Return the report of the same work where it is known; otherwise do the work, in one process at a time.

        Raises:
            StageError: when a file of the user's changed while the work read it.
        """
        work = self
        while (report := work._run_unless_stale()) is None:
            work = replace(work, key=work._current_key())
        return report

    def _run_unless_stale(self) -> Report[Any] | None:
        """Return the report, or None, with nothing done, when the user's files changed during a wait: see `_do`."""
        home = Home(self.root, self.store)
        journal = Journal(home.runs / self.run_id / "journal.jsonl")
        named = {"stage": self.function.__name__, "candidate": self.candidate, "key": self.key}
        journal.append("work_started", **named, host=socket.gethostname(), pid=os.getpid())
        with self._shown(), ExitStack() as held:
            with self._waiting(journal, "for another run that does the same work") as on_wait:
                held.enter_context(locked(home.locks / self.key, on_wait=on_wait))
            report = (self._load(home, self.key) if self.reusable else None) or self._do(home, journal)
        if report is not None:
            journal.append("work_finished", **named, cached=report.cached, seconds=report.seconds)
        return report

    def _load(self, home: Home, key: str) -> Report[Any] | None:
        report_type = inspect.get_annotations(self.function, eval_str=True)["return"]
        return ResultCache(home.results, home.store).load(key, report_type)

    def _result(self, home: Home, workspace: Workspace) -> Report[Any]:
        """Call the function, or return what it measured of the same content on this host, where it still holds."""
        still_holds = traits_of(self.function).still_holds
        if still_holds is None:
            return self.function(self.config, workspace, **self.inputs)
        key = self._measured_as()["key"]
        known = self._load(home, key) if self.resumable else None
        if known is None or not still_holds(self.config, workspace, known=known.facts, **self.inputs):
            known = self.function(self.config, workspace, **self.inputs)
            ResultCache(home.results, home.store).save(key, known)
        return known

    def _do(self, home: Home, journal: Journal) -> Report[Any] | None:
        """Do the work; None, with nothing done, when the key no longer fits, as files changed while it waited."""
        with ExitStack() as held:
            with self._waiting(journal, "until this host is free") as on_wait:
                held.enter_context(host(alone=self.measured, on_wait=on_wait))
                held.enter_context(benchmark_slot() if self.measured else nullcontext())
            files = {} if self.measured else input_files(self.inputs)
            if files and self._current_key() != self.key:
                return None
            if self.measured:
                journal.append("alone", stage=self.function.__name__, **self._measured_as())
            workspace = Workspace(home.store, home.work / self.key)
            if not self.resumable:
                shutil.rmtree(workspace.folder, ignore_errors=True)
            resumes = workspace.folder.is_dir()
            workspace.folder.mkdir(parents=True, exist_ok=True)
            try:
                with ResourceUsage() as usage:
                    report = self._result(home, workspace)
            except Exception as error:  # such as a damaged checkpoint's, which would end each attempt
                if resumes and not (isinstance(error, PipelineError | MemoryError) or getattr(error, "errno", None)):
                    log.warning("%s: what was begun cannot be continued (%s)", self.label, type(error).__name__)
                    shutil.rmtree(workspace.folder, ignore_errors=True)
                raise
            named = report.replace(stage=self.function.__name__)
            report = named.replace(seconds=usage.seconds, peak_rss_bytes=usage.peak_rss_bytes)
            if not self.measured and self._require_one_content(files, workspace.folder) and report.reusable:
                ResultCache(home.results, home.store).save(self.key, report)
            shutil.rmtree(workspace.folder, ignore_errors=True)
        return report

    def _measured_as(self) -> dict[str, str]:
        """Return the key under which what is measured is kept for later runs; nothing where it is not kept."""
        if traits_of(self.function).still_holds is None:
            return {}
        return {"key": f"{self._current_key()}-{socket.gethostname()}"}

    def _current_key(self) -> str:
        return cache_key(self.function, self.config, self.inputs)

    def _require_one_content(self, files: Mapping[str, FileContent], folder: Path) -> bool:
        """Return whether the work can only have read these contents; `StageError` when it may have read a mixture.

        Source code is read once, and people edit it while a training runs, so its change only keeps the result out of
        the cache. So does one that was undone, or that of a file's times alone.
        """
        after = input_files(self.inputs)
        if after == files:
            return True
        before, now = ({(path, file.sha256) for path, file in each.items()} for each in (files, after))
        changed = sorted({path for path, _ in before ^ now})
        if mixed := [path for path in changed if not path.endswith(".py")]:
            shutil.rmtree(folder, ignore_errors=True)  # nothing may be resumed from it
            raise StageError(
                f"{', '.join(mixed)} changed while the stage read it, so the result may mix two contents. "
                "Fix: run the same command again when nothing writes to it"
            )
        names = ", ".join(changed or [path for path in files if files[path] != after[path]])
        log.warning("%s: %s was written to meanwhile, so the result will not be reused", self.label, names)
        return False

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Tell the terminal what is at work."""
        steps_log.info("", extra={"work": self.key, "began": self.label})
        try:
            yield
        finally:
            steps_log.info("", extra={"work": self.key, "ended": self.label})

    @contextmanager
    def _waiting(self, journal: Journal, reason: str) -> Iterator[Callable[[], None]]:
        """Give what is to be called when a wait begins; write to the journal how long the wait inside took."""
        began: list[float] = []

        def on_wait() -> None:
            log.info("%s: waiting %s", self.label, reason)
            began.append(monotonic())

        try:
            yield on_wait
        finally:
            if began:
                journal.append(WAITED, began=began[0], ended=monotonic())


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
