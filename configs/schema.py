"""The configuration schema of a run; Prefect generates its form from it."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from configs.deprecated_keys import rename_keys
from configs.recipe_expansion import expand_recipes, with_auto_limits
from configs.runner import RunnerConfig
from gauntlet.benchmarking.budget import Budget
from gauntlet.core.frozen import Frozen
from gauntlet.datasets.digits import Digits
from tasks.accuracy import AccuracyConfig
from tasks.benchmark.config import BenchmarkConfig
from tasks.calibrate import CalibrateConfig
from tasks.data import DataConfig
from tasks.evaluate import EvaluateConfig
from tasks.export import ExportConfig
from tasks.export.torchscript import TorchScript
from tasks.loadgen import Scenario
from tasks.normalize.config import NormalizeConfig
from tasks.numerics import NumericsConfig
from tasks.optimize import OptimizeConfig
from tasks.optimize.chain import Chain
from tasks.optimize.ort import OrtGraph
from tasks.package import PackageConfig
from tasks.portability import PortabilityConfig
from tasks.preprocess import PreprocessConfig
from tasks.prune import PruneConfig
from tasks.quantize import QuantizeConfig
from tasks.repair import REPAIRED, RepairConfig
from tasks.select import SelectConfig
from tasks.serve.config import ServeConfig
from tasks.structure import StructureConfig
from tasks.train import TrainConfig
from tasks.train.torch import TorchTraining

REFERENCE = "fp32"
FROM_IMAGES = "-uint8"
"""Behind the winner's name: the same with its preprocessing in the graph."""
NORMALIZED = "normalized"
"""The reference as the stage `normalize` made it, where the runtime makes another graph of that."""

DEFAULT_EXPORTER = {
    "torch": "torchscript",
    "torch-detection": "torchscript",
    "torch-segmentation": "torchscript",
    "torch-model": "torchscript",
    "exported-program": "dynamo",
    "keras": "tf2onnx",
    "keras-model": "tf2onnx",
    "saved-model": "saved-model",
    "sklearn": "skl2onnx",
    "sklearn-model": "skl2onnx",
    "boosting": "onnxmltools",
    "boosting-model": "onnxmltools",
    "flax": "jax2onnx",
    "jax-model": "jax2onnx",
    "onnx": "as-is",
}
FRAMEWORK = {
    "torch-detection": "torch",
    "torch-segmentation": "torch",
    "torch-model": "torch",
    "exported-program": "torch",
    "torchscript": "torch",
    "keras-model": "keras",
    "saved-model": "keras",
    "sklearn-model": "sklearn",
    "boosting-model": "boosting",
    "jax-model": "flax",
}
"""Train kind -> framework, where they differ."""
ONE_EXPORTER = {"exported-program": ["dynamo"], "torchscript": ["torchscript"]}
"""Train kind -> its exporter, where not all of the framework's can read such a program."""
PRUNABLE = ("torch", "torch-model")


def exporters_for(train: str) -> list[str]:
    """Return the kinds of the exporters for what a kind of `train` makes."""
    union, framework = get_args(get_args(ExportConfig)[0]), FRAMEWORK.get(train, train)
    return ONE_EXPORTER.get(train) or [
        kind.model_fields["kind"].default for kind in union if kind.framework == framework
    ]


Recipes = Annotated[
    tuple[QuantizeConfig, ...],
    BeforeValidator(expand_recipes, json_schema_input_type=tuple[QuantizeConfig, ...] | Literal["auto"]),
]


class TrackingConfig(Frozen):
    """Where MLflow records the run."""

    uri: str | None = Field(
        None,
        description="MLflow tracking server; by default MLFLOW_TRACKING_URI, or a SQLite file in the gauntlet's home",
    )
    experiment: str | None = Field(None, description="MLflow experiment; by default the name of the run")
    rejected_models: bool = Field(False, description="send the models of rejected candidates to MLflow, too")

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


class PipelineConfig(Frozen):
    """A run of the pipeline, from data to winner."""

    name: str = Field(
        "digits-resnet18",
        pattern=r"^[a-z0-9][a-z0-9-]*$",
        description="name of the model: lower-case letters, digits and dashes",
    )
    data: DataConfig = Field(default_factory=Digits, description="data for training and tests")
    train: TrainConfig = Field(default_factory=TorchTraining)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    export: ExportConfig = Field(default_factory=TorchScript, description="by default the framework's default exporter")
    normalize: NormalizeConfig = Field(default_factory=NormalizeConfig)
    structure: StructureConfig = Field(default_factory=StructureConfig)
    numerics: NumericsConfig = Field(default_factory=NumericsConfig)
    optimize: tuple[OptimizeConfig, ...] = Field(
        (
            Chain(),
            OrtGraph(level="basic"),
            OrtGraph(level="extended"),
            OrtGraph(level="all"),
        ),
        description="graph passes; each makes one candidate",
    )
    calibrate: CalibrateConfig = Field(default_factory=CalibrateConfig)
    portability: PortabilityConfig = Field(default_factory=PortabilityConfig)  # before `quantize`: `auto` reads it
    benchmark: BenchmarkConfig = Field(default_factory=BenchmarkConfig)  # also before `quantize`
    quantize: Recipes = Field(
        "auto",
        validate_default=True,
        description="quantization recipes, each one candidate; a recipe with lists gives one for every combination; "
        "auto: recommended recipes for this machine",
    )
    quantize_budget_s: float | None = Field(
        None,
        ge=0,
        description="time for the graph passes, calibration, recipes and repairs of one network; what would end later "
        "is not tried, except the first pass and the first two recipes; default: 60 with `quantize: auto`, else none",
    )
    prune: tuple[PruneConfig, ...] = Field(
        (),
        description="pruned networks; each is a candidate that passes every gate, and is also quantized",
    )
    accuracy: AccuracyConfig = Field(default_factory=AccuracyConfig)
    repair: RepairConfig = Field(default_factory=RepairConfig)
    select: SelectConfig = Field(default_factory=SelectConfig)
    loadgen: tuple[Scenario, ...] = Field(
        (), description="scenarios in which MLPerf's LoadGen measures the winner; its verdict is a gate"
    )
    preprocess: PreprocessConfig = Field(default_factory=PreprocessConfig)
    budget: Budget = Field(default_factory=Budget, description="limits that the winner must keep; a gate")
    package: PackageConfig = Field(default_factory=PackageConfig)
    runner: RunnerConfig = Field(default_factory=RunnerConfig, description="what does independent work side by side")
    serve: ServeConfig = Field(default_factory=ServeConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    operator_libraries: tuple[Path, ...] = Field(
        (), description="shared libraries with the model's custom operators; every session loads them"
    )
    overrides: tuple[Override, ...] = Field((), description="failed checks to accept")

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of all candidates, the reference first."""
        made = (*self.optimize, *self.pruned_recipes)
        pruned = (name for p in self.prune for name in (p.name, *(f"{p.name}-{one.name}" for one in made)))
        return (REFERENCE, *(p.name for p in self.optimize), *(q.name for q in self.quantize), *pruned)

    @property
    def pruned_recipes(self) -> tuple[QuantizeConfig, ...]:
        """The recipes for pruned networks: the static ones."""
        return tuple(recipe for recipe in self.quantize if recipe.kind == "static")

    @property
    def race(self) -> BenchmarkConfig:
        """The plan of the race, which can judge the budget and the objective."""
        return self.benchmark.with_budget(self.budget).with_selection(self.select.objective, self.select.batch)

    @model_validator(mode="before")
    @classmethod
    def _default_kinds(cls, values: Any) -> Any:
        """Accept old key names, and add the default kind to parts without one."""
        if not isinstance(values, dict):
            return values
        values = with_auto_limits(rename_keys(values))
        train = values.get("train", {})
        framework = train.get("kind", "torch") if isinstance(train, dict) else getattr(train, "kind", "torch")
        default = {"data": "digits", "train": "torch", "export": DEFAULT_EXPORTER.get(str(framework), "torchscript")}
        parts = {part: values.get(part, {}) for part in default if part in values or part == "export"}
        return values | {
            k: {"kind": default[k]} | part if isinstance(part, dict) else part for k, part in parts.items()
        }

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self._require_fitting_framework()
        self._require_distinct_candidates()
        self._require_measured_batch()
        self._require_winner_here()
        self._require_portable_operators()
        self._require_known_overrides()
        return self

    def _require_fitting_framework(self) -> None:
        allowed = exporters_for(self.train.kind)
        if self.export.kind not in allowed:
            raise ValueError(
                f"export.kind: {self.export.kind!r} exports {self.export.framework} models, "
                f"but train.kind is {self.train.kind!r} (allowed: {', '.join(allowed)})"
            )
        if self.evaluate.folds and FRAMEWORK.get(self.train.kind, self.train.kind) != "sklearn":
            raise ValueError(
                f"evaluate.folds: {self.evaluate.folds} trains the model again for each part, which only train.kind "
                f"sklearn and sklearn-model do, not {self.train.kind!r}; remove it"
            )
        if self.prune and self.train.kind not in PRUNABLE:
            raise ValueError(
                f"prune supports PyTorch networks (train.kind torch or torch-model), not {self.train.kind!r}; remove it"
            )

    def _require_distinct_candidates(self) -> None:
        duplicates = [name for name, count in Counter((*self.candidates, NORMALIZED)).items() if count > 1]
        if duplicates:
            raise ValueError(
                f"optimize, quantize and prune make two candidates named {duplicates[0]!r}; remove one of them"
            )

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
        foreign = [t.name for t in self.benchmark.targets if t.name in self.benchmark.deploy_targets and t.env]
        if self.loadgen and foreign:
            raise ValueError(
                f"loadgen measures the winner in this Python environment, and benchmark.deploy_targets names "
                f"{foreign[0]!r}, which runs in another; remove one of them"
            )

    def _require_portable_operators(self) -> None:
        remote = [target.name for target in self.benchmark.remote_targets]
        if self.operator_libraries and remote:
            raise ValueError(
                f"operator_libraries are files of this machine, and benchmark.targets names {remote[0]!r}, which races "
                "on another; remove one of them"
            )

    def _require_known_overrides(self) -> None:
        networks = ("", *(f"{pruning.name}-" for pruning in self.prune))
        repairable = [recipe.name for recipe in self.quantize if self.repair.can_repair(recipe)]
        repaired = (f"{network}{name}{REPAIRED}" for network in networks for name in repairable)
        known = (None, NORMALIZED, *self.candidates, *repaired)
        unknown = [o.candidate for o in self.overrides if o.candidate not in known]
        if unknown:
            raise ValueError(f"overrides: unknown candidate {unknown[0]!r}; available: {list(self.candidates)}")
