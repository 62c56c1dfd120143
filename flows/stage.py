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
from flows.failure import fails_with_its_reason
from flows.record.cache_key import cache_key
from flows.record.progress import relay_progress
from flows.record.run import Place, Run
from flows.record.work import Work, WorkerError
from flows.side_by_side import Workers, side_by_side
from gauntlet.core.artifact import Artifact
from gauntlet.core.candidate import Candidate
from gauntlet.core.errors import STORE_ERRORS, GateFailed, NothingToGain, NotTried, PipelineError, StageError
from gauntlet.core.facts import Facts
from gauntlet.core.report import Report
from gauntlet.core.stage import traits_of
from gauntlet.core.workspace import Workspace
from gauntlet.reporting.text_format import counted

log = logging.getLogger("gauntlet")

Config = TypeVar("Config")
FactsT = TypeVar("FactsT", bound=Facts)
Inputs = ParamSpec("Inputs")
Result = TypeVar("Result")
Stage: TypeAlias = Callable[Concatenate[Config, Workspace, Inputs], Report[FactsT]]


@dataclass
class Line:
    """The main line of a run, or a candidate's: what is called on it is recorded under the candidate's name.

    A candidate's line holds the candidate as it stands: its file and its quality as its stages report them.
    """

    run: Run
    candidate: Candidate | None = None
    place: Place = ()
    workers: Workers | None = None  # without them, all work is done in the thread that calls
    at_stage: str = ""

    def __post_init__(self) -> None:
        self._count = itertools.count()

    @property
    def name(self) -> str | None:
        """The candidate's name; None for the main line."""
        return self.candidate.name if self.candidate else None

    def stage(
        self, function: "Stage[Config, Inputs, FactsT]", config: Config, /, *args: Inputs.args, **inputs: Inputs.kwargs
    ) -> Report[FactsT]:
        """Run a stage: its work, unless an earlier run has done the same, then its gate.

        The function's name is the stage's name; its attributes (`gauntlet.core.stage`) say how it is run. Inputs are
        passed by name; with the configuration and the code, they decide whether work is the same.

        Raises:
            GateFailed: when the report does not pass.
            StageError: when there is no report, because the stage broke.
        """
        return self._run(function, config, inputs)

    def make(
        self, function: "Stage[Config, Inputs, FactsT]", config: Config, /, *args: Inputs.args, **inputs: Inputs.kwargs
    ) -> Report[FactsT]:
        """Run a stage whose artifact `model` is the candidate's file from then on, even if its gate rejects it.

        Raises:
            NothingToGain: when the stage's facts say so.
        """
        report = self._run(function, config, inputs, made="model")
        if reason := getattr(report.facts, "nothing_to_gain", ""):
            raise NothingToGain(reason)
        return report

    @property
    def made(self) -> Candidate:
        """The line's candidate as it stands.

        Raises:
            ValueError: on the main line, which has none.
        """
        if self.candidate is None:
            raise ValueError("the main line has no candidate")
        return self.candidate

    def update(self, **changes: Any) -> Candidate:
        """Change the line's candidate, and record it as it stands."""
        self.candidate = replace(self.made, **changes)
        self.run.record_candidate(self.candidate, self.place)
        return self.candidate

    @contextmanager
    def side_by_side(self, config: RunnerConfig) -> Iterator["Line"]:
        """Run the forks of the line inside side by side, as configured; behind it, all have ended."""
        if config.is_serial:
            yield self
            return
        with side_by_side(config) as workers:
            yield replace(self, place=self._next_place(), workers=workers)

    def fork(self, function: "Callable[[Line], Result]") -> "Future[Result]":
        """Call a function, with a line of its own, that is independent of what follows: beside it, or at once.

        What ended it is raised where its result is taken, unless it ended at once.
        """
        line = replace(self, place=self._next_place())
        if self.workers is not None:
            return self.workers.start(lambda: function(line))
        done: Future[Result] = Future()
        done.set_result(function(line))
        return done

    def below(self) -> "Line":
        """Return a line for forks that stand together at the next place of this one."""
        return replace(self, place=self._next_place())

    @contextmanager
    def attempt(self, candidate: Candidate) -> Iterator["Line"]:
        """Open a candidate's line. When a gate rejects it or a stage breaks, the candidate is dropped, not the run.

        Behind it, the line's `candidate` says what became of it.
        """
        line = replace(self, candidate=candidate, place=self._next_place())
        name = line.update().name
        try:
            yield line
        except STORE_ERRORS:
            raise
        except (NothingToGain, NotTried) as reason:
            line.update(status="not tried" if isinstance(reason, NotTried) else "unchanged", reason=str(reason))
            log.info("%s is not raced: %s", name, reason)
        except PipelineError as error:
            text = str(error).removeprefix(f"{line.at_stage} {name}: ").removeprefix(f"{name}: ")
            text = text if isinstance(error, GateFailed) else f"{line.at_stage} broke: {text}"
            line.update(status="rejected", reason=text)
            log.info("%s rejected: %s", name, text)
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

    @property
    def at_once(self) -> int:
        """How many forks of this line can be at work at the same time."""
        return self.workers.size if self.workers else 1

    def _next_place(self) -> Place:
        return (*self.place, next(self._count))

    def _run(
        self, function: Callable[..., Report[Any]], config: Any, inputs: Mapping[str, Any], *, made: str | None = None
    ) -> Report[Any]:
        """Run the two nodes of a stage; `made` is the artifact that is the candidate's file."""
        run, stage, place = self.run, function.__name__, self._next_place()
        label = f"{stage} {self.name}" if self.name else stage
        run.at_stage = self.at_stage = stage
        measured = traits_of(function).measured
        measured_as = f"{run.id}-{stage}" + (f"-{self.name}" if self.name else "")
        key = measured_as if measured else cache_key(function, config, inputs)
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
            if self.candidate is not None:
                file = {"model": report.artifacts[made]} if made in report.artifacts else {}
                self.update(**file, **report.facts.of_candidate())
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


@task(**UNCACHED | {"task_run_name": "{label} gate"}, retries=0)  # whatever Prefect's settings say
@fails_with_its_reason
def _gate_node(label: str, report: Report[Any], judge: Callable[[Report[Any]], None]) -> None:
    judge(report)


def _exception(state: State[Any]) -> BaseException:
    result = state.result(raise_on_failure=False)
    return result if isinstance(result, BaseException) else StageError(str(state.message))


def _report_of(done: State[Any], label: str) -> Report[Any]:
    """Return the work's report, or raise what ended it as one of this project's errors."""
    if done.is_completed():
        report: Report[Any] = done.result()
        return report
    error = _exception(done)
    if isinstance(error, StageError):
        raise type(error)(f"{label}: {error}") from error
    if isinstance(error, PipelineError) or not isinstance(error, Exception):  # the latter: a signal ended it
        raise error
    kind = "" if isinstance(error, WorkerError) else f"{type(error).__name__}: "
    raise StageError(f"{label}: {kind}{error}") from error


def _upstream(run: Run, inputs: Mapping[str, Any]) -> list[State[Any]]:
    """Return the gates that accepted the inputs, so that Prefect draws the edges."""
    parts = (value.values() if isinstance(value, Mapping) else [value] for value in inputs.values())
    digests = [part.sha256 for part in itertools.chain.from_iterable(parts) if isinstance(part, Artifact)]
    gates = (run.producing_gates[digest] for digest in digests if digest in run.producing_gates)
    return list({id(gate): gate for gate in gates}.values())


def _log_verdict(report: Report[Any]) -> None:
    """Log a line for the stage and one for each check that did not pass.

    A candidate's stages are left out, because its rejection names the check, unless there is news.
    """
    if report.candidate is not None and not report.facts.headline():
        return
    failed = [check for check in report.checks if not check.passed]
    label = f"{report.stage} {report.candidate}" if report.candidate else report.stage
    verdict = "FAILED" if report.failures else "passed"
    checks = counted(len(report.checks), "check")
    warnings = f"{checks}, {len(failed)} with a warning" if failed else checks
    passed = f"{len(failed)} of {checks} did not pass" if report.failures else warnings
    cost = "cached" if report.cached else f"{report.seconds:.1f} s"
    log.log(logging.ERROR if report.failures else logging.INFO, "%s %s, %s (%s)", label, verdict, passed, cost)
    for line in report.facts.first_results():
        log.info("  %s", line)
    for check in failed:
        how = f"overridden: {check.override}" if check.override else check.severity
        log.log(logging.ERROR if check.blocks else logging.WARNING, "  %s (%s)", check, how)
