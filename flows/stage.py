"""The seam: the only place where a stage becomes Prefect tasks, gets recorded, and is judged.

Every stage makes two nodes. The *work* is done at most once for the same inputs, configuration, code and packages, and
is tried again when it crashes. Its *gate* is never cached and never retried: it records the report first, so that a
failure leaves evidence, and then lets the run pass or raises `GateFailed`. A stage without a gate cannot be written.
"""

import inspect
import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Concatenate, ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.tasks import Task

from flows.exclusive import alone_on_this_host
from flows.identity import work_key
from flows.locks import HOST_LOCK, locked
from flows.measure import Measured
from flows.progress import relayed
from flows.results import Results
from flows.run import CANDIDATE, CURRENT, Run
from tasks.artifact import Artifact
from tasks.errors import PipelineError, StageError
from tasks.report import Facts, Report
from tasks.workspace import Workspace

log = logging.getLogger("gauntlet")

Config = TypeVar("Config")
Inputs = ParamSpec("Inputs")


def stage(
    name: str,
    function: Callable[Concatenate[Config, Workspace, Inputs], Report[Facts]],
    *,
    cached: bool = True,
    alone: bool = False,
) -> Callable[Concatenate[Config, Inputs], Report[Facts]]:
    """Turn a pure stage into a work node and a gate node.

    Args:
        name: what the stage is called in every view; also the configuration part that it takes.
        function: `function(config, workspace, **inputs) -> Report[...]`.
        cached: whether the work of an earlier run may be used.
        alone: whether nothing else of this project may run on the host meanwhile.

    Returns:
        A function of the configuration and the inputs, to be called in a flow. It returns the report, or raises
        `GateFailed` where the report does not pass and `StageError` where there is none.
    """
    report_type = inspect.get_annotations(function, eval_str=True)["return"]

    @task(
        name=name,
        task_run_name="{label}",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=1,
        retry_delay_seconds=1,
        retry_condition_fn=_is_crash,
    )
    def work(label: str, do: Callable[[], Report[Any]]) -> Any:
        report = do()
        return (
            Completed(name="Cached", message="not repeated: nothing changed", data=report) if report.cached else report
        )

    @task(name=f"{name} gate", task_run_name="{label} gate", cache_policy=NO_CACHE, persist_result=False)
    def gate(label: str, report: Report[Any], judge: Callable[[Report[Any]], None]) -> None:
        judge(report)

    def run_stage(config: Config, /, *args: Inputs.args, **inputs: Inputs.kwargs) -> Report[Facts]:
        run, candidate = CURRENT.get(), CANDIDATE.get()
        label = f"{name} {candidate}" if candidate else name
        run.at_stage = name
        key = work_key(function, config, inputs) if cached else f"{run.id}-{name}"

        def do() -> Report[Facts]:
            run.journal.append("work_started", stage=name, candidate=candidate, key=key)
            with ExitStack() as stack:
                stack.enter_context(
                    locked(run.home.locks / key, on_wait=_say(f"{label}: another run does the same work"))
                )
                results = Results(run.home.results, run.home.store)
                reuse = cached and (key in run.done or not run.fresh)
                report = results.load(key, report_type) if reuse else None
                if report is None:
                    _wait_for_the_host(stack, label, alone=alone)
                    if alone:
                        run.journal.append("alone", stage=name)
                    workspace = Workspace(run.home.store, run.home.work / key)
                    if run.fresh:
                        shutil.rmtree(workspace.folder, ignore_errors=True)
                    workspace.folder.mkdir(parents=True, exist_ok=True)
                    with relayed(run, name), Measured() as measured:
                        report = function(config, workspace, *args, **inputs)
                    report = report.replace(seconds=measured.seconds, peak_rss_bytes=measured.peak_rss_bytes)
                    if cached:
                        results.save(key, report)
                    shutil.rmtree(workspace.folder, ignore_errors=True)
            run.done.add(key)
            run.journal.append(
                "work_finished", stage=name, candidate=candidate, key=key, cached=report.cached, seconds=report.seconds
            )
            return report

        done = work(label, do, return_state=True, wait_for=_upstream(run, inputs))
        report = _answer(done, label)
        report = report.replace(candidate=candidate, checks=tuple(run.overridden(c) for c in report.checks))

        def judge(_: Report[Any]) -> None:
            run.record(report)
            report.enforce()

        verdict = gate(label, done, judge, return_state=True)
        if not verdict.is_completed():
            raise _exception(verdict)
        run.makers |= dict.fromkeys((a.sha256 for a in report.artifacts.values()), verdict)
        return report

    return run_stage


def _is_crash(_task: Task[Any, Any], _run: TaskRun, state: State[Any]) -> bool:
    """Tell Prefect to try again only what may end otherwise the next time: never a verdict, never a clear error."""
    return not isinstance(_exception(state), PipelineError)


def _exception(state: State[Any]) -> BaseException:
    found = state.result(raise_on_failure=False)
    return found if isinstance(found, BaseException) else StageError(str(state.message))


def _answer(done: State[Any], label: str) -> Report[Any]:
    """Return the work's report, or raise what ended it as one of this project's errors."""
    if done.is_completed():
        report: Report[Any] = done.result()
        return report
    error = _exception(done)
    if isinstance(error, StageError):
        raise StageError(f"{label}: {error}") from error
    if isinstance(error, PipelineError | KeyboardInterrupt | SystemExit):
        raise error
    raise StageError(f"{label}: {type(error).__name__}: {error}") from error


def _upstream(run: Run, inputs: Mapping[str, Any]) -> list[State[Any]]:
    """Return the gates that let the inputs pass, so that Prefect draws the edges."""
    found = []
    for value in inputs.values():
        artifacts = value.values() if isinstance(value, Mapping) else [value]
        found += [run.makers[a.sha256] for a in artifacts if isinstance(a, Artifact) and a.sha256 in run.makers]
    return list({id(state): state for state in found}.values())


def _wait_for_the_host(stack: ExitStack, label: str, *, alone: bool) -> None:
    """Share the host with other work, or have it alone."""
    waiting = _say(f"{label}: waiting until this host is free")
    stack.enter_context(locked(HOST_LOCK, shared=not alone, on_wait=waiting))
    if alone:
        stack.enter_context(alone_on_this_host())


def _say(text: str) -> Callable[[], None]:
    return lambda: log.info("%s", text)
