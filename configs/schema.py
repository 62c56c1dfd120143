"""The configuration schema of a run; Prefect generates its form from it."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from configs.frameworks import DEFAULT_TRAINING, exporters_for, framework_of, trainings
from configs.runner import LocalRunner, RunnerConfig
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import is_brought, removed
from gauntlet.core.shipping import configured_stages, with_shipping_keys
from gauntlet.core.unions import OneOf
from gauntlet.datasets.digits import Digits
from gauntlet.race.budget import Budget
from gauntlet.runtime.processor import Processor
from tasks.accuracy import AccuracyConfig
from tasks.benchmark.config import BenchmarkConfig
from tasks.calibrate import CalibrateConfig
from tasks.data import DataConfig
from tasks.evaluate import EvaluateConfig
from tasks.export import ExportConfig
from tasks.export.base import AsIs
from tasks.normalize.config import NormalizeConfig
from tasks.numerics import NumericsConfig
from tasks.optimize import OptimizeConfig
from tasks.optimize.chain import Chain
from tasks.optimize.graph_pass import OrtGraph
from tasks.package import PackageConfig
from tasks.prune import PruneConfig
from tasks.quantize import QuantizeConfig
from tasks.quantize.auto import KINDS_OF_PROCESSORS, expand_recipes, recipes_for, with_auto_limits
from tasks.select.config import SelectConfig
from tasks.structure import StructureConfig
from tasks.train import TrainConfig

REFERENCE = "fp32"
NORMALIZED = "normalized"
"""The reference as the stage `normalize` made it, where the runtime makes another graph of that."""

Recipes = Annotated[
    tuple[QuantizeConfig, ...],
    BeforeValidator(expand_recipes, json_schema_input_type=tuple[QuantizeConfig, ...] | Literal["auto"]),
]

Runner = Annotated[RunnerConfig, OneOf("runner", (LocalRunner,))]


class TrackingConfig(Frozen):
    """Where MLflow records the run."""

    everyday: ClassVar = {"uri": "http://mlflow.example.com:5000"}
    uri: str | None = Field(
        None, description="MLflow server; by default MLFLOW_TRACKING_URI, or SQLite in the gauntlet's home"
    )
    experiment: str | None = Field(None, description="MLflow experiment; by default the name of the run")
    rejected_files: bool = Field(True, description="also send the files of candidates that were not accepted")

    @field_validator("uri")
    @classmethod
    def _without_password(cls, uri: str | None) -> str | None:
        if uri and urlsplit(uri).password:
            raise ValueError(
                "a configuration is shown in reports, so it must not hold a password; "
                "set MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return uri


class Override(Frozen):
    """A failed check to accept, with the reason that the report shows."""

    check: str = Field(
        pattern=r"^[a-z]+\.[a-z0-9_]+$", description="name of the check, for example evaluate.min_recall"
    )
    reason: str = Field(min_length=10, description="why it is accepted; shown with the check")
    candidate: str | None = Field(None, description="only for this candidate; by default for the main line")


@with_shipping_keys
class PipelineConfig(Frozen):
    """A run of the pipeline, from data to winner."""

    everyday: ClassVar = {
        "name": "mobilenet-birds",
        "quantize": [{"kind": "dynamic"}, {"kind": "static", "per_channel": [True, False]}],
        "quantize_budget_s": 600,
        "prune": [{"kind": "structured", "macs_fraction": 0.5}],
        "overrides": [{"check": "evaluate.min_recall", "reason": "the worst class has 5 images"}],
    }
    name: str = Field(
        "digits-resnet18",
        pattern=r"^[a-z0-9][a-z0-9-]*$",
        max_length=200,
        description="name of the model: lower-case letters, digits and dashes",
    )
    data: DataConfig = Field(default_factory=Digits, description="data for training and tests")
    extra_samples: tuple[Path, ...] = Field(
        (), description="`.npz` files of labeled, preprocessed samples for training, validation and calibration"
    )
    max_near_duplicates: int | None = Field(
        None, ge=0, description="near copies of test images in other splits; by default, any is a warning"
    )
    train: TrainConfig = Field(default_factory=lambda: {"kind": DEFAULT_TRAINING}, validate_default=True)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    export: ExportConfig = Field(default_factory=AsIs, description="by default the framework's default exporter")
    normalize: NormalizeConfig = Field(default_factory=NormalizeConfig)
    structure: StructureConfig = Field(default_factory=StructureConfig)
    numerics: NumericsConfig = Field(default_factory=NumericsConfig)
    optimize: tuple[OptimizeConfig, ...] = Field(
        (Chain(), OrtGraph(level="basic"), OrtGraph(level="extended"), OrtGraph(level="all")),
        description="graph passes; each makes one candidate",
    )
    calibrate: CalibrateConfig = Field(default_factory=CalibrateConfig)
    benchmark: BenchmarkConfig = Field(default_factory=BenchmarkConfig)  # before `quantize`: `auto` reads it
    quantize: Recipes = Field(
        "auto",
        validate_default=True,
        description="recipes, each one candidate; lists inside a recipe make their product; auto: recommended ones "
        "for this machine",
    )
    quantize_budget_s: float | None = Field(
        None,
        ge=0,
        description="time for a network's passes, calibration, recipes and repairs; default: 60 with `quantize: auto`",
    )
    prune: tuple[PruneConfig, ...] = Field((), description="pruned networks, each a candidate that is also quantized")
    accuracy: AccuracyConfig = Field(default_factory=AccuracyConfig)
    select: SelectConfig = Field(default_factory=SelectConfig)
    budget: Budget = Field(default_factory=Budget, description="limits that the winner must keep; a gate")
    package: PackageConfig = Field(default_factory=PackageConfig)
    runner: Runner = Field(default_factory=LocalRunner, description="what does independent work side by side")
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    operator_libraries: tuple[Path, ...] = Field((), description="libraries of the model's custom operators")
    overrides: tuple[Override, ...] = Field((), description="failed checks to accept")

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of all candidates, the reference first."""
        made = (*self.optimize, *self.pruned_recipes)
        pruned = (name for p in self.prune for name in (p.name, *(f"{p.name}-{recipe.name}" for recipe in made)))
        return (REFERENCE, *(p.name for p in self.optimize), *(q.name for q in self.quantize), *pruned)

    @property
    def pruned_recipes(self) -> tuple[QuantizeConfig, ...]:
        """The recipes for pruned networks: the static ones."""
        return tuple(recipe for recipe in self.quantize if recipe.kind == "static")

    @property
    def _repaired(self) -> tuple[str, ...]:
        """The names of the candidates that a repair may make."""
        networks = ("", *(f"{pruning.name}-" for pruning in self.prune))
        return tuple(
            f"{network}{recipe.name}{suffix}"
            for name, stage in configured_stages(self, "rejected").items()
            for network in networks
            for recipe in self.quantize
            for suffix, rejected in ((stage.suffix, True), (stage.suffix_of_accepted, False))
            if suffix and stage.fits(getattr(self, name), recipe, (), rejected=rejected)
        )

    @property
    def race(self) -> BenchmarkConfig:
        """The plan of the race, which can judge the budget and the objective."""
        how = self.select
        return self.benchmark.with_budget(self.budget).with_selection(how.objective, how.batch, how.tie_tolerance)

    @model_validator(mode="before")
    @classmethod
    def _default_kinds(cls, values: Any) -> Any:
        """Add the default kind to parts without one."""
        if not isinstance(values, dict):
            return values
        values = with_auto_limits(values)
        train = values.get("train", {})
        kind = train.get("kind", DEFAULT_TRAINING) if isinstance(train, dict) else getattr(train, "kind", "")
        exporter = next(iter(exporters_for(str(kind))), AsIs().kind)
        default = {"data": "digits", "train": DEFAULT_TRAINING, "export": exporter, "runner": "threads"}
        parts = {part: values.get(part, {}) for part in default if part in values or part == "export"}
        kinds = {part: {"kind": default[part]} | own for part, own in parts.items() if isinstance(own, dict)}
        return values | parts | kinds

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self._require_fitting_framework()
        self._require_distinct_candidates()
        self._require_measured_batch()
        self._require_winner_here()
        self._require_races_elsewhere()
        self._require_known_overrides()
        return self

    def _require_fitting_framework(self) -> None:
        allowed = exporters_for(self.train.kind)
        if self.export.kind not in allowed:
            raise ValueError(
                f"export.kind: {self.export.kind!r} exports {self.export.framework} models, "
                f"but train.kind is {self.train.kind!r} (allowed: {', '.join(allowed)})"
            )
        framework = framework_of(self.train.kind)
        if self.evaluate.folds and (framework is None or framework.cross_validate is None):
            able = [kind for kind in trainings() if (its := framework_of(kind)) and its.cross_validate]
            raise ValueError(
                f"evaluate.folds: {self.evaluate.folds} trains the model again for each part, which only train.kind "
                f"{' and '.join(able)} do, not {self.train.kind!r}; remove it"
            )
        if self.prune and not self.train.prunable:
            able = [kind for kind, training in trainings().items() if training.prunable]
            raise ValueError(
                f"prune supports networks of train.kind {' or '.join(able)}, not {self.train.kind!r}; remove it"
            )

    def _require_distinct_candidates(self) -> None:
        names = (*self.candidates, NORMALIZED, *self._repaired)
        further = {key: stage.suffix for key, stage in configured_stages(self, "chosen").items() if stage.suffix}
        made = (name + suffix for name in names for suffix in further.values())
        duplicates = [name for name, count in Counter((*names, *made)).items() if count > 1]
        if duplicates:
            keys = ", ".join(("optimize", "quantize", "prune", *configured_stages(self, "rejected"), *further))
            raise ValueError(f"two candidates named {duplicates[0]!r}; remove one of them, or rename it ({keys})")

    def _require_measured_batch(self) -> None:
        if self.select.batch not in self.benchmark.batch_sizes:
            raise ValueError(
                f"select.batch is {self.select.batch}, which is not measured; "
                f"benchmark.batch_sizes has {list(self.benchmark.batch_sizes)}"
            )
        unmeasured = [batch for batch in self.budget.batch_sizes if batch not in self.benchmark.batch_sizes]
        if unmeasured:
            raise ValueError(
                f"budget has a limit at batch size {unmeasured[0]}, which is not measured; "
                f"benchmark.batch_sizes has {list(self.benchmark.batch_sizes)}"
            )

    def _require_winner_here(self) -> None:
        foreign = [t.name for t in self.benchmark.targets if t.name in self.benchmark.deploy_targets and t.environment]
        if foreign and (here := [*configured_stages(self, "winner")]):
            raise ValueError(
                f"{here[0]} measures the winner in this Python environment, and benchmark.deploy_targets names "
                f"{foreign[0]!r}, which runs in another; remove one of them"
            )

    def _require_races_elsewhere(self) -> None:
        remote = [target.name for target in self.benchmark.remote_targets]
        if remote and not is_brought("race"):
            fix = removed("race.*")
            raise ValueError(f"benchmark.targets: nothing is installed that races {remote[0]} on its machine. {fix}")
        if self.operator_libraries and remote:
            raise ValueError(
                f"operator_libraries are files of this machine, and benchmark.targets names {remote[0]!r}, which races "
                "on another; remove one of them"
            )

    def _require_known_overrides(self) -> None:
        if not self.overrides:
            return
        lists, values = [self.quantize], vars(self)
        if self.quantize == recipes_for(Processor.current(), values):  # of `auto`, and so another one on other machines
            lists += [recipes_for(processor, values) for processor in KINDS_OF_PROCESSORS]
        elsewhere = [self.model_copy(update={"quantize": recipes}) for recipes in lists]
        known = {None, NORMALIZED}.union(*((*each.candidates, *each._repaired) for each in elsewhere))
        if unknown := [o.candidate for o in self.overrides if o.candidate not in known]:
            raise ValueError(f"overrides: unknown candidate {unknown[0]!r}; available: {list(self.candidates)}")
