"""Take the races of other machines into the run: each was raced on its own machine, against FP32 on that machine."""

from collections.abc import Callable, Mapping
from typing import Self

from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import BenchmarkRow, speed_metrics
from gauntlet.core.workspace import Workspace
from gauntlet.race.machine_load import MachineLoad
from gauntlet.race.target_examiner import ModelOnTarget, Status, TargetExaminer
from gauntlet.targets import Target, trusting
from tasks.benchmark.config import BenchmarkConfig
from tasks.benchmark.other_targets import aa_checks, missing_targets_check, race_on_target
from tasks.benchmark.setup import prepare


class Machine(Frozen):
    """The machine of a race; times of two machines are not comparable."""

    host: str
    platform: str
    processor: str
    instructions: tuple[str, ...] = Field(description="that decide which kernels run")
    usable_threads: int
    memory_gb: Number
    python: str = Field(description="of its worker; the version of a race's runtime is in its `validation`")

    @classmethod
    def from_environment(cls, environment: JsonObject) -> Self:
        """Return the machine that a run's `environment` describes."""
        return cls.model_validate({name: environment[name] for name in cls.model_fields})


class RemoteRace(Frozen):
    """The race of one target on another machine, or why there is none."""

    target: str
    pool: str
    machine: Machine | None = Field(None, description="None where it did not race")
    failure: str | None = Field(None, description="why a race that was given to the pool has no result")
    results: tuple[ModelOnTarget, ...]
    reference: tuple[BenchmarkRow, ...] = Field(
        (), description="the FP32 model on the first target, the base of all rows"
    )
    control: tuple[BenchmarkRow, ...] = Field((), description="the same once more: what equal models differ by")
    load: MachineLoad | None = None

    @classmethod
    def absent(cls, target: Target, candidates: Mapping[str, Artifact], reason: str) -> Self:
        """Return that no machine could race the target: it is unavailable."""
        return cls._without_race(target, candidates, "unavailable", reason)

    @classmethod
    def failed(cls, target: Target, candidates: Mapping[str, Artifact], reason: str) -> Self:
        """Return that a race began and did not end."""
        return cls._without_race(target, candidates, "failed", reason).replace(failure=reason)

    @classmethod
    def _without_race(cls, target: Target, candidates: Mapping[str, Artifact], status: Status, reason: str) -> Self:
        models = [ModelOnTarget(candidate=n, target=target.name, status=status, reason=reason) for n in candidates]
        return cls(target=target.name, pool=str(target.on), results=tuple(models))


class RemoteFacts(Facts):
    """The races on other machines. A speed-up is always that of two models on one machine."""

    races: tuple[RemoteRace, ...]

    def candidate_metrics(self) -> dict[str, dict[str, float | None]]:
        """Return each candidate's speed on other machines, whose targets' names tell the work pool."""
        values: dict[str, dict[str, float | None]] = {}
        for result in (result for race in self.races for result in race.results):
            values.setdefault(result.candidate, {}).update(speed_metrics(result.rows, elsewhere=True))
        return values


def remote(
    config: BenchmarkConfig, workspace: Workspace, *, races: tuple[RemoteRace, ...], rows: Mapping[str, Artifact]
) -> Report[RemoteFacts]:
    """Judge the races that other machines have run: their controls, and what is missing.

    `rows` holds the files in which the machines left their races, by target.
    """
    results = [result for race in races for result in race.results]
    fix = "start a worker on such a machine (gauntlet worker --pool NAME), or remove them from benchmark.targets"
    checks = (
        *aa_checks(results, config.max_aa_deviation),
        *missing_targets_check(results, "remote.absent_targets", fix),
        _failed_races_check(races),
        *(result.check for result in results if result.check),
    )
    artifacts = {f"rows_{target}": artifact for target, artifact in rows.items()}
    return Report(facts=RemoteFacts(races=races), checks=checks, artifacts=artifacts, timed=True)


def _failed_races_check(races: tuple[RemoteRace, ...]) -> Check:
    failed = [f"{race.target}: {race.failure}" for race in races if race.failure]
    fix = "see the log of the flow run on Prefect's page, and of its worker"
    name = "remote.failed_targets"
    return Check.of(name, len(failed), "<=", 0, "; ".join(failed), fix, unit="targets", severity="warning")


def plan_for(config: BenchmarkConfig, target: Target) -> BenchmarkConfig:
    """Return the plan of the race of one target on another machine."""
    return config.replace(targets=(config.targets[0], target), deploy_targets=(), session_variants=(), profile=False)


def race_here(
    config: BenchmarkConfig,
    workspace: Workspace,
    *,
    target: Target,
    models: Mapping[str, Artifact],
    golden: Artifact,
    framework_model: Artifact | None = None,
    on_round: Callable[[int], None] = lambda _: None,
) -> RemoteRace:
    """Race the models, by candidate name, on one target of the machine that this is called on, which it does not name.

    The first model is the reference: it runs on the configuration's first target, and once more as an A/A control.

    Raises:
        StageError: when the reference cannot be measured.
    """
    entries, inputs, plan = prepare(config, workspace, models, golden)
    source = workspace.path(framework_model) if framework_model else None
    examiner = TargetExaminer.from_models({name: entries[name].model for name in models}, inputs, plan, source)
    [trusted] = trusting([target])
    reference = entries[next(iter(models))]
    results, table = race_on_target(trusted, examiner, reference, resolution=config.resolution, on_round=on_round)
    measured = {"reference": table.reference_rows, "control": table.control, "load": table.machine} if table else {}
    return RemoteRace(target=target.name, pool=str(target.on), results=results, **measured)
