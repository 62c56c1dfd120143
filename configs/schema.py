"""One frozen value says everything about a run; Prefect draws its form from it."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from tasks.accuracy import AccuracyConfig
from tasks.agreement import NumericsConfig
from tasks.benchmark.config import BenchmarkConfig
from tasks.calibrate import CalibrateConfig
from tasks.data import DataConfig
from tasks.data.digits import Digits
from tasks.evaluate import EvaluateConfig
from tasks.export import ExportConfig
from tasks.export.torchscript import TorchScript
from tasks.frozen import Frozen
from tasks.loadgen import Scenario
from tasks.optimize import OptimizeConfig
from tasks.optimize.chain import Chain
from tasks.optimize.ort import OrtGraph
from tasks.portability import PortabilityConfig
from tasks.prune import PruneConfig
from tasks.quantize import QuantizeConfig
from tasks.quantize.auto import Operators, recipes_for
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8
from tasks.repair import REPAIRED, RepairConfig
from tasks.runtime.processor import this_processor
from tasks.select import SelectConfig
from tasks.train import TrainConfig
from tasks.train.torch import TorchTraining
from tasks.validate.structure import StructureConfig

REFERENCE = "fp32"

USUAL_EXPORTER = {
    "torch": "torchscript",
    "torch-model": "torchscript",
    "keras": "tf2onnx",
    "keras-model": "tf2onnx",
    "saved-model": "saved-model",
    "sklearn": "skl2onnx",
    "sklearn-model": "skl2onnx",
    "flax": "jax2onnx",
    "onnx": "as-is",
}
FRAMEWORK = {"torch-model": "torch", "keras-model": "keras", "saved-model": "keras", "sklearn-model": "sklearn"}
"""Whose files a train kind leaves behind, where it is not the kind itself."""


def exporters_for(framework: str) -> list[str]:
    """Return the kinds of exporters that take a framework's models."""
    union = get_args(get_args(ExportConfig)[0])
    return [kind.model_fields["kind"].default for kind in union if kind.takes == framework]


def made_of(train: TrainConfig | None) -> Operators:
    """Return what the models of a train part are mostly made of, as far as it tells before anything ran."""
    if train is None or train.kind not in ("torch", "keras", "flax"):
        return "matrices" if train and train.kind.startswith("sklearn") else "unknown"
    return "unknown" if re.search("vit|swin", getattr(train, "architecture", "")) else "convolutions"


def expanded(recipes: Any, info: ValidationInfo) -> Any:
    """Replace `auto` by the recipes that suit this machine's processor, and a recipe's lists by one recipe a choice.

    The report then lists them, and nothing after this knows of either.
    """
    if isinstance(recipes, list):
        return [choice for recipe in recipes for choice in choices(recipe)]
    if not isinstance(recipes, str):
        return recipes
    if recipes != "auto":
        raise ValueError("write auto, or a list of recipes")
    portability = info.data.get("portability")
    without_vnni = portability is not None and portability.needs_vnni == "reject"
    operators, race = made_of(info.data.get("train")), info.data.get("benchmark")
    shipping = [target.kind for target in race.targets if target.name in race.also_ship_on] if race else []
    return recipes_for(this_processor(), operators, without_vnni=without_vnni, shipping=shipping)


def choices(value: Any) -> Iterator[Any]:
    """Yield every value that can be had by taking one element of each list in it; an empty list is left as it is.

    `{kind: static, per_channel: [true, false]}` gives two recipes, and two such lists the product of both.
    """
    if isinstance(value, list) and value:
        for element in value:
            yield from choices(element)
    elif isinstance(value, dict):
        for chosen in product(*map(choices, value.values())):
            yield dict(zip(value, chosen, strict=True))
    else:
        yield value


Recipes = Annotated[
    tuple[QuantizeConfig, ...],
    BeforeValidator(expanded, json_schema_input_type=tuple[QuantizeConfig, ...] | Literal["auto"]),
]


class TrackingConfig(Frozen):
    """Where MLflow keeps the record."""

    uri: str | None = Field(
        None,
        description="MLflow tracking server; by default MLFLOW_TRACKING_URI, or a SQLite file in the gauntlet's home",
    )
    experiment: str | None = Field(None, description="MLflow experiment; by default the name of the run")


class Override(Frozen):
    """One failed check that a person lets pass. It is recorded in the report for ever."""

    check: str = Field(
        pattern=r"^[a-z]+\.[a-z0-9_]+$", description="name of the check, for example evaluate.min_recall"
    )
    reason: str = Field(min_length=10, description="why; it is shown wherever the check is")
    candidate: str | None = Field(None, description="only for this candidate; by default on the main line")


class PipelineConfig(Frozen):
    """A whole run of the gauntlet, from data to winner."""

    name: str = Field(
        "digits-resnet18", pattern=r"^[a-z0-9][a-z0-9-]*$", description="of the model; lower case, digits and dashes"
    )
    data: DataConfig = Field(default_factory=Digits, description="what the model learns from and is measured on")
    train: TrainConfig = Field(default_factory=TorchTraining)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    export: ExportConfig = Field(default_factory=TorchScript, description="by default what suits the framework")
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
    portability: PortabilityConfig = Field(default_factory=PortabilityConfig)  # before `quantize`, whose auto reads it
    benchmark: BenchmarkConfig = Field(default_factory=BenchmarkConfig)  # this too
    quantize: Recipes = Field(
        (StaticInt8(), StaticInt8(activations="s8"), DynamicInt8(), DynamicInt8(weights="s8")),
        description="quantisation recipes, one candidate a choice of their lists; or auto: what suits this machine",
    )
    prune: tuple[PruneConfig, ...] = Field(
        (), description="smaller networks made of the trained one; each walks the line by itself, and again in INT8"
    )
    accuracy: AccuracyConfig = Field(default_factory=AccuracyConfig)
    repair: RepairConfig = Field(default_factory=RepairConfig)
    select: SelectConfig = Field(default_factory=SelectConfig)
    loadgen: tuple[Scenario, ...] = Field(
        (), description="scenarios in which MLPerf's load generator measures the winner; its verdict is a gate"
    )
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    operator_libraries: tuple[Path, ...] = Field(
        (), description="shared libraries with operators of the model's own; every session gets them"
    )
    overrides: tuple[Override, ...] = Field((), description="failed checks that a person lets pass, one by one")

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of all candidates, the reference first."""
        pruned = (name for p in self.prune for name in (p.name, *(f"{p.name}-{q.name}" for q in self.pruned_recipes)))
        return (REFERENCE, *(p.name for p in self.optimize), *(q.name for q in self.quantize), *pruned)

    @property
    def pruned_recipes(self) -> tuple[QuantizeConfig, ...]:
        """The recipes that pruned networks get too: the static ones."""
        return tuple(recipe for recipe in self.quantize if recipe.kind == "static")

    @model_validator(mode="before")
    @classmethod
    def _usual_kinds(cls, values: Any) -> Any:
        """Fill in the kind of a part that names none: digits, PyTorch, and the exporter that suits the framework."""
        if not isinstance(values, dict):
            return values
        train = values.get("train", {})
        framework = train.get("kind", "torch") if isinstance(train, dict) else getattr(train, "kind", "torch")
        usual = {"data": "digits", "train": "torch", "export": USUAL_EXPORTER.get(str(framework), "torchscript")}
        parts = {part: values.get(part, {}) for part in usual if part in values or part == "export"}
        return values | {k: {"kind": usual[k]} | part if isinstance(part, dict) else part for k, part in parts.items()}

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        framework = FRAMEWORK.get(self.train.kind, self.train.kind)
        if self.export.takes != framework:
            raise ValueError(
                f"export.kind: {self.export.kind!r} exports what train.kind {self.export.takes!r} makes, "
                f"not {self.train.kind!r} (for that: {', '.join(exporters_for(framework))})"
            )
        if self.prune and framework != "torch":
            raise ValueError(
                f"prune cuts PyTorch networks (train.kind torch or torch-model), not {self.train.kind!r}; leave it out"
            )
        twice = [name for name, count in Counter(self.candidates).items() if count > 1]
        if twice:
            raise ValueError(
                f"optimize, quantize and prune make two candidates named {twice[0]!r}; leave one of them out"
            )
        if self.select.batch not in self.benchmark.batch_sizes:
            raise ValueError(
                f"select.batch is {self.select.batch}, which is not measured; "
                f"benchmark.batch_sizes has {list(self.benchmark.batch_sizes)}"
            )
        several = "sessions" if self.benchmark.sessions else "also_ship_on" if self.benchmark.also_ship_on else ""
        if several and self.select.batch != self.benchmark.batch_sizes[0]:
            raise ValueError(
                f"select.batch is {self.select.batch}, but benchmark.{several} are compared at the first of "
                f"benchmark.batch_sizes, {self.benchmark.batch_sizes[0]}; put the one that decides first"
            )
        foreign = [t.name for t in self.benchmark.targets if t.name in self.benchmark.also_ship_on and t.env]
        if self.loadgen and foreign:
            raise ValueError(
                f"loadgen asks the winner in this Python environment, and benchmark.also_ship_on names {foreign[0]!r}, "
                "which runs in another; leave one of them out"
            )
        networks = ("", *(f"{pruning.name}-" for pruning in self.prune))
        mended = [recipe.name for recipe in self.quantize if self.repair.takes(recipe)]
        known = (None, *self.candidates, *(f"{network}{name}{REPAIRED}" for network in networks for name in mended))
        strangers = [o.candidate for o in self.overrides if o.candidate not in known]
        if strangers:
            raise ValueError(f"overrides names the candidate {strangers[0]!r}; there are {list(self.candidates)}")
        return self
