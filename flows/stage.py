"""The seam: the only place where a stage becomes Prefect tasks, is recorded, and is judged.

Every stage makes two nodes. The *work* is done at most once for the same inputs, configuration, code and packages, and
is retried once when it crashes. Its *gate* is never cached and never retried: it records the report first, so that a
failure leaves evidence, and then lets the line pass or raises `GateFailed`. A stage without a gate cannot be written.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.tasks import Task

from configs.runner import RunnerConfig
from configs.schema import REFERENCE
from flows.record.cache_key import cache_key
from flows.record.progress import relay_progress
from flows.record.run import Place, Run
from flows.record.work import Work, WorkerError
from flows.side_by_side import Workers, side_by_side
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import STORE_ERRORS, GateFailed, PipelineError, StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from tasks.optimize import OptimizeFacts

log = logging.getLogger("gauntlet")

Config = TypeVar("Config")
Facts = TypeVar("Facts", bound=Frozen)
Inputs = ParamSpec("Inputs")
Stage: TypeAlias = Callable[Concatenate[Config, Workspace, Inputs], Report[Facts]]


@dataclass
class Line:
    """The main line of a run, or a candidate's: what is called on it is recorded under the candidate's name."""

    run: Run
    name: str | None = None
    place: Place = ()
    workers: Workers | None = None  # without them, all work is done in the thread that calls
    at_stage: str = ""

    def __post_init__(self) -> None:
        self._count = itertools.count()
        self.branches: list[Future[None]] = []

    def stage(
        self, function: "Stage[Config, Inputs, Facts]", config: Config, /, *args: Inputs.args, **inputs: Inputs.kwargs
    ) -> Report[Facts]:
        """Run a stage: its work, unless an earlier run has done the same, then its gate.

        The function's name is the stage's name. Inputs are passed by name; with the configuration and the code, they
        decide whether work is the same.

        Raises:
            GateFailed: when the report does not pass.
            StageError: when there is no report, because the stage broke.
        """
        return self._run(function, config, inputs, measured=False)

    def measure(
        self, function: "Stage[Config, Inputs, Facts]", config: Config, /, *args: Inputs.args, **inputs: Inputs.kwargs
    ) -> Report[Facts]:
        """Run a stage as `stage` does, but never from the cache, and alone among this project's work on the host."""
        return self._run(function, config, inputs, measured=True)

    @contextmanager
    def side_by_side(self, config: RunnerConfig) -> Iterator["Line"]:
        """Run the branches of the line inside side by side, as configured; behind it, all have ended."""
        if config.is_serial:
            yield self
            return
        with side_by_side(config) as workers:
            yield replace(self, place=self._next_place(), workers=workers)

    def branch(
        self, function: "Callable[Concatenate[Line, Inputs], None]", /, *args: Inputs.args, **inputs: Inputs.kwargs
    ) -> None:
        """Call a function, with a line of its own, that is independent of what follows: beside it, or at once."""
        line = replace(self, place=self._next_place())
        if self.workers is None:
            function(line, *args, **inputs)
        else:
            self.branches.append(self.workers.start(lambda: function(line, *args, **inputs)))

    @contextmanager
    def together(self) -> Iterator["Line"]:
        """Give a line whose branches have all ended behind it; what ended one of them is raised."""
        line = replace(self, place=self._next_place())
        yield line
        for branch in line.branches:
            branch.result()

    @contextmanager
    def candidate(self, name: str, parent: str = REFERENCE) -> Iterator["Line"]:
        """Open a candidate's line. When a gate rejects it or a stage breaks, the candidate is dropped, not the run."""
        line = replace(self, name=name, place=self._next_place())
        self.run.add_candidate(name, parent, line.place)
        try:
            yield line
        except STORE_ERRORS:
            raise
        except PipelineError as error:
            broken = "" if isinstance(error, GateFailed) else f"{line.at_stage} broke: "
            self.run.update(name, status="rejected", reason=f"{broken}{error}")
            log.info("%s rejected: %s%s", name, broken, error)
        else:
            log.info("%s passed its gates", name)

    @contextmanager
    def continue_on_failure(self) -> Iterator[None]:
        """Continue when a stage inside fails or breaks: only what needs its artifacts is lost."""
        try:
            yield
        except STORE_ERRORS:
            raise
        except PipelineError as error:
            log.warning("%s: %s", self.at_stage, error)

    def rejected_by(self, function: Callable[..., Report[Any]], candidate: str) -> bool:
        """Tell whether the gate of this stage has rejected a candidate."""
        return self.run.rejected_by(function.__name__, candidate)

    def _next_place(self) -> Place:
        return (*self.place, next(self._count))

    def _run(
        self, function: Callable[..., Report[Any]], config: Any, inputs: Mapping[str, Any], *, measured: bool
    ) -> Report[Any]:
        """Run the two nodes of a stage."""
        run, stage, place = self.run, function.__name__, self._next_place()
        label = f"{stage} {self.name}" if self.name else stage
        run.at_stage = self.at_stage = stage
        key = f"{run.id}-{stage}" if measured else cache_key(function, config, inputs)
        with run.only(key), relay_progress(run, stage, key):
            fresh = run.fresh and key not in run.done
            work = Work(
                run_id=run.id,
                root=run.home.root,
                store=run.home.store.address,
                label=label,
                candidate=self.name,
                key=key,
                measured=measured,
                reusable=not (measured or fresh),
                resumable=not run.fresh,
                function=function,
                config=config,
                inputs=inputs,
            )
            done = self._state_of(work)
            report = _report_of(done, label).replace(candidate=self.name)
            run.done.add(key)
        report = report.replace(checks=tuple(run.overridden(check, self.name) for check in report.checks))

        def judge(_: Report[Any]) -> None:
            run.record(report, place)
            _log_verdict(report)
            report.raise_if_blocked()

        verdict = _gate_node.with_options(name=f"{stage} gate")(label, done, judge, return_state=True)
        if not verdict.is_completed():
            raise _exception(verdict)
        run.producing_gates |= dict.fromkeys((a.sha256 for a in report.artifacts.values()), verdict)
        return report

    def _state_of(self, work: Work) -> State[Any]:
        """Do work in this thread, or give it to a worker and wait; return the state of its node."""
        node, after = _work_node.with_options(name=work.function.__name__), _upstream(self.run, work.inputs)
        if self.workers is None or work.measured:
            return node(work.label, work.run, return_state=True, wait_for=after)
        return self.workers.run(node, work.label, work, after)


def _is_crash(_task: Task[Any, Any], _run: TaskRun, state: State[Any]) -> bool:
    """Tell Prefect to retry only what may end differently: never a verdict, never an error of this project."""
    return not isinstance(_exception(state), PipelineError)


UNCACHED: dict[str, Any] = {"task_run_name": "{label}", "cache_policy": NO_CACHE, "persist_result": False}


@task(**UNCACHED, retries=1, retry_delay_seconds=1, retry_condition_fn=_is_crash)
def _work_node(label: str, do: Callable[[], Report[Any]]) -> Any:
    report = do()
    return Completed(name="Cached", message="not repeated: nothing changed", data=report) if report.cached else report


@task(**UNCACHED | {"task_run_name": "{label} gate"})
def _gate_node(label: str, report: Report[Any], judge: Callable[[Report[Any]], None]) -> None:
    judge(report)


def _exception(state: State[Any]) -> BaseException:
    found = state.result(raise_on_failure=False)
    return found if isinstance(found, BaseException) else StageError(str(state.message))


def _report_of(done: State[Any], label: str) -> Report[Any]:
    """Return the work's report, or raise what ended it as one of this project's errors."""
    if done.is_completed():
        report: Report[Any] = done.result()
        return report
    error = _exception(done)
    if isinstance(error, WorkerError):
        raise StageError(f"{label}: {error}") from error
    if isinstance(error, StageError):
        raise type(error)(f"{label}: {error}") from error
    if isinstance(error, PipelineError) or not isinstance(error, Exception):  # the latter: a signal ended it
        raise error
    raise StageError(f"{label}: {type(error).__name__}: {error}") from error


def _upstream(run: Run, inputs: Mapping[str, Any]) -> list[State[Any]]:
    """Return the gates that accepted the inputs, so that Prefect draws the edges."""
    found = []
    for value in inputs.values():
        artifacts = value.values() if isinstance(value, Mapping) else [value]
        gates = run.producing_gates
        found += [gates[a.sha256] for a in artifacts if isinstance(a, Artifact) and a.sha256 in gates]
    return list({id(state): state for state in found}.values())


def _log_verdict(report: Report[Any]) -> None:
    """Log a line for the stage and one for each check that did not pass.

    A candidate's stages are left out, because its rejection names the check, unless a pass broke the model.
    """
    facts = report.facts
    broke = isinstance(facts, OptimizeFacts) and any(p.artifact is not None for p in facts.passes)
    if report.candidate is not None and not broke:
        return
    failed = [check for check in report.checks if not check.passed]
    label = f"{report.stage} {report.candidate}" if report.candidate else report.stage
    verdict = "FAILED" if report.failures else "passed"
    checks = f"{len(report.checks)} check" + ("" if len(report.checks) == 1 else "s")
    passed = f"{len(failed)} of {checks} did not pass" if failed else checks
    cost = "cached" if report.cached else f"{report.seconds:.1f} s"
    log.log(logging.ERROR if report.failures else logging.INFO, "%s %s, %s (%s)", label, verdict, passed, cost)
    for check in failed:
        how = f"overridden: {check.override}" if check.override else check.severity
        log.log(logging.ERROR if check.blocks else logging.WARNING, "  %s (%s)", check, how)
