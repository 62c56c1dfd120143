"""Lines of a run side by side: a thread waits for each, and a task runner of Prefect does their work.

The record of a run is kept, and its gates are judged, in the process of the run; only the work of stages travels.
"""

import contextlib
import ctypes
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import Any, TypeVar, cast

import psutil
from prefect import flow
from prefect.client.schemas.objects import RunInput, State, TaskRunResult
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner
from prefect.tasks import Task

from configs.runner import RunnerConfig
from flows.record.progress import ProgressReader
from flows.record.work import Work, WorkElsewhere
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.stage import traits_of
from gauntlet.core.workspace import steps_log
from gauntlet.runtime.operator_libraries import operator_libraries
from gauntlet.runtime.resources import end_with_parent

MAX_LINES = 1000
"""Threads are started as lines are, and only wait: the workers are the limit."""
POLL_S = 0.1
ATTEMPTS = 3
"""A process that ends in the middle of its work, for example for lack of memory, takes its neighbors' work with it."""
Result = TypeVar("Result")


class Cancelled(BaseException):
    """Ends a line because the run ends; no candidate is to blame."""


class Workers:
    """Does the work of lines; each line is a function in a thread."""

    def __init__(self, config: RunnerConfig) -> None:
        self.config = config
        self.others = set(multiprocessing.active_children())
        self.runner = start_task_runner(config)
        self.restarts = 0
        self.cancelled = False
        self._lines = ThreadPoolExecutor(MAX_LINES, "line")
        self._started: list[Future[Any]] = []
        self._threads: set[int] = set()  # at work, of a pool of threads
        self._lock, self._suspects, self._process_wide = threading.Lock(), threading.Lock(), threading.Lock()

    @property
    def size(self) -> int:
        """How many works can be done at the same time."""
        return self.config.size_of(self.runner)

    def start(self, line: Callable[[], Result]) -> Future[Result]:
        """Run a line in a thread of its own."""
        started = self._lines.submit(copy_context().run, line)
        self._started.append(started)
        return started

    def join(self) -> None:
        """Wait for all lines, also those that lines have started; raise what ended the first one that failed."""
        while pending := [line for line in self._started if not line.done()]:
            for line in wait(pending, return_when=FIRST_COMPLETED).done:
                line.result()
        for line in self._started:
            line.result()

    def run(self, node: Task[Any, Any], label: str, work: Work, after: list[State[Any]]) -> State[Any]:
        """Do a stage's work on a worker and return the state of its node; `after` are the states that it builds on.

        Raises:
            StageError: when the worker was lost again and again, with no other work in doubt beside it.
        """
        if self.cancelled:
            raise Cancelled
        ids = [state.state_details.task_run_id for state in after]
        edges: dict[str, set[RunInput]] = {"do": {TaskRunResult(id=task) for task in ids if task}}
        reader = ProgressReader(work.root / "work" / f"{work.key}.progress")
        do: Callable[[], Report[Any]]
        if self.config.kind == "threads":
            do = lambda: self._in_thread(work)  # noqa: E731 - a function of this call alone
        else:
            do = WorkElsewhere(work, reader.path, operator_libraries()).run
        for attempt in range(ATTEMPTS):
            with self._suspects if attempt else nullcontext():
                try:
                    with self._lock, _context_of_workers():
                        restarts = self.restarts
                        future = self.runner.submit(node, {"label": label, "do": do}, dependencies=edges)
                    return self._wait(future, reader)
                except (BrokenProcessPool, CancelledError):
                    self._restart(restarts)
                except Exception as error:  # the scheduler's or Prefect's: those of the work are in its state
                    if attempt == ATTEMPTS - 1:
                        raise StageError(f"{label}: the worker was lost: {type(error).__name__}: {error}") from error
                finally:
                    reader.close()
                    steps_log.info("", extra={"work": work.key, "ended": label})  # a killed worker does not say so
        raise StageError(f"{label}: its process was killed {ATTEMPTS} times; memory is short, or the model crashes it")

    def cancel(self) -> None:
        """End all work: lines end when they look next, threads at their next Python instruction, processes at once."""
        self.cancelled = True
        with self._lock:
            for thread in self._threads:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Cancelled))
        self._kill_processes()

    def close(self) -> None:
        """Wait until every line and every worker has ended."""
        self._lines.shutdown(cancel_futures=True)
        self.runner.__exit__(None, None, None)

    def _kill_processes(self) -> None:
        for process in set(multiprocessing.active_children()) - self.others:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children(recursive=True)  # in sessions of their own
                process.kill()
                for child in children:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
            process.join(POLL_S)

    def _wait(self, future: PrefectFuture[Any], reader: ProgressReader) -> State[Any]:
        # Python's pool can lose the thread that watches its processes, and with it every unfinished future.
        pool = getattr(self.runner, "_executor", None)
        while not self.cancelled:
            watcher = getattr(pool, "_executor_manager_thread", None)
            lost = watcher is not None and not watcher.is_alive()
            with contextlib.suppress(TimeoutError):
                future.result(timeout=POLL_S, raise_on_failure=False)
                return future.state
            if lost:
                raise BrokenProcessPool("the pool has lost its processes")
            reader.relay()
        future.wrapped_future.cancel()  # type: ignore[attr-defined]  # withdraws work that no worker has begun
        raise Cancelled

    def _in_thread(self, work: Work) -> Report[Any]:
        this = threading.get_ident()
        with self._lock:
            if self.cancelled:
                raise Cancelled
            self._threads.add(this)
        try:
            with self._process_wide if traits_of(work.function).process_wide else nullcontext():
                return work.run()
        finally:
            with self._lock:
                self._threads.discard(this)

    def _restart(self, restarts: int) -> None:
        """Start the processes again, once for all lines whose work was lost with them."""
        with self._lock:
            if self.restarts == restarts and not self.cancelled:
                self._end_runner()
                self.runner = start_task_runner(self.config)
                self.restarts += 1
        if self.cancelled:
            raise Cancelled

    def _end_runner(self) -> None:
        """End a task runner that has lost a process.

        Python's pool would wait for ever for a process that it was starting when it broke, or that ignores SIGTERM; in
        Python 3.11.2 also for a thread that writes to processes that read no more (gh-94777).
        """
        queue = getattr(getattr(self.runner, "_executor", None), "_call_queue", None)
        if queue is not None and sys.version_info < (3, 11, 5):  # later ones close it: twice at once ends their thread
            queue._reader.close()
        ending = threading.Thread(target=self.runner.__exit__, args=(None, None, None), daemon=True)
        ending.start()
        while ending.is_alive():
            ending.join(POLL_S)
            if self.config.kind == "processes":
                self._kill_processes()


@flow(name="gauntlet")
def flow_in_workers() -> None:
    """Stand for the flow of the run: with the real one, workers would load whatever it imports, MLflow among it."""


@contextmanager
def _context_of_workers() -> Iterator[None]:
    """Give workers the flow run that tasks belong to, without its flow and its parameters."""
    context = FlowRunContext.get()
    with context.model_copy(update={"flow": flow_in_workers, "parameters": {}}) if context else nullcontext():
        yield


@contextmanager
def side_by_side(config: RunnerConfig) -> Iterator[Workers]:
    """Start workers. At the end, all lines are waited for; when one fails or a signal comes, all are ended."""
    workers = Workers(config)
    try:
        yield workers
        workers.join()
    except BaseException:
        workers.cancel()
        raise
    finally:
        workers.close()


def start_task_runner(config: RunnerConfig) -> TaskRunner[Any]:
    """Return Prefect's task runner of a configuration, started; `StageError` when its workers cannot be reached."""
    runner: TaskRunner[Any] = make_task_runner(config)
    try:
        runner.__enter__()
        if messages := getattr(runner, "_subprocess_message_queue", None):
            messages.cancel_join_thread()  # or a worker that was killed while it sent one would hold up the exit
        config.size_of(runner)
    except Exception as error:
        where = f" at {address}" if (address := getattr(config, "address", None)) else ""
        raise StageError(f"runner: no {config.kind} workers{where}: {type(error).__name__}: {error}") from error
    return runner


def make_task_runner(config: RunnerConfig) -> TaskRunner[Any]:
    """Return Prefect's task runner of a configuration."""
    match config.kind:
        case "threads":
            return ThreadPoolTaskRunner(max_workers=config.size)
        case "processes":
            return ProcessPoolTaskRunner(max_workers=config.size, initializer=end_with_parent)
    return cast(TaskRunner[Any], config.task_runner())
