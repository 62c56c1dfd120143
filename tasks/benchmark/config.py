"""Configuration of the benchmark stage."""

import math
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BeforeValidator, Field, PositiveInt, field_validator, model_validator

from gauntlet.core.frozen import Frozen
from gauntlet.race.budget import NO_BUDGET, Budget
from gauntlet.race.confidence import MAX_ROUNDS, RESOLUTION
from gauntlet.race.contender import Plan, Priority
from gauntlet.race.early_stopping import MIN_DIFFERENCE
from gauntlet.race.objective import Objective
from gauntlet.race.session_options import SessionVariant, describe_sessions
from gauntlet.runtime.resources import usable_threads
from gauntlet.targets import ANY, Target, default_targets, installed_targets, trusting
from gauntlet.targets.ort import OrtCpu

AUTO = "auto"
ONE_THREAD_BELOW_MS = 1.0
"""A call of the default session that takes less may be quicker in one thread: waking the others takes a part of it."""


def _require_list(names: Any) -> Any:
    if isinstance(names, str):
        raise ValueError("write auto, or a list of names of benchmark.targets")  # noqa: TRY004 - pydantic wants this one
    return names


def _name_of(target: Any) -> str:
    """Return the name of a target as the configuration writes it; empty for one that is not valid."""
    if not isinstance(target, dict):
        return str(getattr(target, "name", target))
    try:
        return str(ANY.kinds()[target["kind"]].model_validate(target).name)
    except (KeyError, ValueError):  # the validation of the field says what is wrong
        return ""


class BenchmarkConfig(Frozen):
    """How the candidates are timed. By default, a candidate that is not stopped early runs 0.9 s at each batch size."""

    everyday: ClassVar = {
        "batch_sizes": [1, 16],
        "threads": 2,
        "targets": ["ort-cpu", "openvino-f32"],
        "deploy_targets": "auto",
    }
    batch_sizes: tuple[PositiveInt, ...] = Field((1, 8), min_length=1, description="samples per call, if not fixed")
    rounds: int = Field(16, ge=6, le=MAX_ROUNDS, description="rounds of the race; a 95 % interval needs at least 6")
    block_ms: float = Field(50, gt=0, description="how long a candidate runs at one batch size in one round")
    min_calls: int = Field(3, ge=1, description="least number of calls in a block, whatever their duration")
    threads: int | None = Field(None, ge=1, description="threads of each session; default: all usable by the process")
    timeout_s: float = Field(120, gt=0, description="time limit of each reply of a worker")
    restart_processes: bool = Field(True, description="new processes in every round; without, intervals are too narrow")
    resolution: float = Field(RESOLUTION, ge=0, lt=1, description="widens both ends of intervals: two races differ")
    early_stopping: bool = Field(True, description="stop candidates proven slower, and clear races halfway")
    targets: tuple[Target, ...] = Field(
        (OrtCpu(),), min_length=1, description="names from `gauntlet targets`, or kinds with options; first ort-cpu"
    )
    deploy_targets: Annotated[
        tuple[str, ...], BeforeValidator(_require_list, json_schema_input_type=tuple[str, ...] | Literal["auto"])
    ] = Field(
        (), description="other `targets` on which candidates race, too; auto: the installed runtimes for this processor"
    )
    session_variants: tuple[OrtCpu, ...] | None = Field(
        None,
        description="more session options of the first target: {spinning: false}; `select.batch` decides; by default, "
        "one thread where a call takes less than 1 ms",
    )
    remote_timeout_s: float = Field(
        3600, gt=0, description="time limit of a race on another machine (`on`), waiting included"
    )
    profile: bool = Field(True, description="profile the fastest candidate and the reference after the race")
    max_aa_deviation: float = Field(0.05, gt=0, description="largest deviation from 1 of FP32's speed-up over itself")
    priority: Priority = Field(
        "auto",
        description="realtime: nothing interrupts turns; auto: as GAUNTLET_PRIORITY says, else realtime where allowed "
        "and no `gauntlet serve` runs",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_installed_targets(cls, values: Any) -> Any:
        """Replace `deploy_targets: auto` by the installed targets, and list these among the targets."""
        if not isinstance(values, dict) or values.get("deploy_targets") != AUTO:
            return values
        installed, listed = installed_targets(), values.get("targets", ("ort-cpu",))
        if not isinstance(listed, list | tuple):  # the validation of the field says what is wrong
            return values | {"deploy_targets": ()}
        known = {_name_of(target) for target in listed}
        missing = [target for target in installed if target.name not in known]
        return values | {"targets": (*listed, *missing), "deploy_targets": [target.name for target in installed]}

    @field_validator("batch_sizes")
    @classmethod
    def _each_once(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(sizes)) < len(sizes):  # one round would count duplicate, and the intervals would be too narrow
            raise ValueError(f"batch sizes must be unique, got {list(sizes)}")
        return sizes

    @field_validator("targets", mode="before")
    @classmethod
    def _by_name(cls, targets: Any) -> Any:
        if not isinstance(targets, list | tuple):
            return targets
        known = {target.name: target for target in default_targets()}
        unknown = [name for name in targets if isinstance(name, str) and name not in known]
        if unknown:
            raise ValueError(f"unknown target {unknown[0]!r}; available: {', '.join(known)}")
        return tuple(known[target] if isinstance(target, str) else target for target in targets)

    @field_validator("targets")
    @classmethod
    def _first_target_is_the_cpu(cls, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        if targets[0].kind != "ort-cpu" or targets[0].on:
            raise ValueError(
                f"the first target must be ort-cpu on this machine, the baseline of all others; got {targets[0].name}"
            )
        names = [target.name for target in targets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"target names must be unique, but {', '.join(twice)} is there twice; remove one")
        return targets

    @model_validator(mode="after")
    def _names_are_valid(self) -> Self:
        variants = self.session_variants or ()
        names = [self.targets[0].name, *(session.name for session in variants)]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate:
            raise ValueError(f"session_variants: {duplicate} is listed twice or equals the first target; remove it")
        if any(session.env for session in variants):
            raise ValueError("session_variants run in this Python environment; for another one (`env`), add a target")
        if any(session.on for session in variants):
            raise ValueError("session_variants run on this machine; for another one (`on`), add a target")
        others = {target.name: target for target in self.targets[1:]}
        for name in self.deploy_targets:
            if name not in others:
                available = ", ".join(others) or "none; list it in benchmark.targets after ort-cpu"
                raise ValueError(f"deploy_targets: unknown target {name!r}; available: {available}")
            if pool := others[name].on:
                raise ValueError(
                    f"deploy_targets: {name} races on a machine of the work pool {pool!r}, and only times of one "
                    "machine are compared; remove it, or run the pipeline on that machine"
                )
            if others[name].model_suffixes:
                raise ValueError(f"deploy_targets: {name} does not run ONNX files; remove it")
            if refused := next(others[name].bound_to_machine(), None):
                raise ValueError(f"deploy_targets: {name} sets {refused}, which a bundle may not have; remove either")
        return self

    @property
    def default_threads(self) -> int:
        """Threads of a session whose options do not set them."""
        return self.threads or usable_threads()

    @property
    def all_sessions(self) -> tuple[OrtCpu, ...]:
        """The first target and the session variants; without a list of these, one thread if the first has more."""
        first = cast(OrtCpu, self.targets[0])
        if self.session_variants is not None:
            return (first, *self.session_variants)
        if first.inter_op_threads or first.env or (first.threads or self.default_threads) == 1:
            return (first,)
        single = first.replace(threads=1)
        return (first,) if single in self.targets else (first, single)

    @property
    def other_targets(self) -> tuple[Target, ...]:
        """The targets after the first that race on this machine."""
        return tuple(target for target in self.targets[1:] if target.on is None)

    @property
    def deployable(self) -> tuple[Target, ...]:
        """The targets on which the winner may be deployed."""
        return tuple(target for target in self.other_targets if target.name in self.deploy_targets)

    @property
    def comparison_only(self) -> tuple[Target, ...]:
        """The other targets of this machine; they may run the framework's file, which is an artifact of the run."""
        return tuple(trusting(target for target in self.other_targets if target.name not in self.deploy_targets))

    @property
    def remote_targets(self) -> tuple[Target, ...]:
        """The targets that race on other machines."""
        return tuple(target for target in self.targets if target.on)

    def target_named(self, name: str) -> Target:
        """Return a target or a session variant by its name."""
        return next(target for target in (*self.targets, *self.all_sessions) if target.name == name)

    def with_budget(self, budget: Budget) -> Self:
        """Return the plan of a race that can judge a budget: with enough calls for its percentiles, and no early stops.

        A candidate proven slower than the fastest may be the one within the budget.
        """
        if budget == NO_BUDGET:
            return self
        least = math.ceil(budget.least_calls / self.rounds)
        return self.replace(min_calls=max(self.min_calls, least), early_stopping=False)

    def with_selection(self, objective: Objective, batch: int, tie_tolerance: float) -> Self:
        """Return the plan of a race that can judge an objective at a batch size.

        That size comes first, because it decides between sessions and targets. Where a candidate may win that is
        clearly slower than the fastest, or another batch size may decide, none is stopped early.
        """
        sizes = (batch, *(size for size in self.batch_sizes if size != batch))
        stops = self.early_stopping and objective == "latency" and tie_tolerance <= MIN_DIFFERENCE
        return self.replace(batch_sizes=sizes, early_stopping=stops)

    def alone(self, target: str, rounds: int) -> Self:
        """Return the plan of a race on the first target and another one alone, without early stops."""
        return self.replace(
            targets=tuple(t for i, t in enumerate(self.targets) if i == 0 or t.name == target),
            deploy_targets=tuple(name for name in self.deploy_targets if name == target),
            session_variants=tuple(session for session in self.all_sessions[1:] if session.name == target),
            rounds=rounds,
            early_stopping=False,
            profile=False,
        )

    def plan(self, batch_sizes: tuple[int, ...]) -> Plan:
        """Return the plan of a race at batch sizes that its models accept."""
        return Plan(
            batch_sizes=batch_sizes,
            rounds=self.rounds,
            block_ms=self.block_ms,
            threads=self.default_threads,
            timeout_s=self.timeout_s,
            min_calls=self.min_calls,
            early_stopping=self.early_stopping,
            variants_below_ms=ONE_THREAD_BELOW_MS if self.session_variants is None else None,
            priority=self.priority,
            restarts=self.restart_processes,
        )

    def described(self) -> tuple[SessionVariant, ...]:
        """Return the session variants with their settings on this machine; raises what `describe_sessions` does."""
        return describe_sessions(self.all_sessions, self.default_threads, usable_threads())
