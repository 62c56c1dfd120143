"""What the views need of a stage's facts. Facts are plain JSON in the record, so they are read with care.

Facts of an older schema, or of a stage that stopped half way, leave a section out; they never break a page.
"""

from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tasks.frozen import JsonObject
from tasks.run_report import RunReport

Model = TypeVar("Model", bound="Read")


class Read(BaseModel):
    """A tolerant view of some facts: it takes what it knows and ignores the rest."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ClassScore(Read):
    """One class on the test images."""

    label: str
    precision: float
    recall: float
    f1: float
    images: int


class Scores(Read):
    """Facts of the stage `evaluate`."""

    accuracy: float
    macro_f1: float
    classes: tuple[ClassScore, ...] = Field(min_length=1)
    confusion: tuple[tuple[int, ...], ...]

    @model_validator(mode="after")
    def _square(self) -> Self:
        count = len(self.classes)
        if len(self.confusion) != count or any(len(row) != count for row in self.confusion):
            raise ValueError("the confusion matrix is not classes by classes")
        if any(n < 0 for row in self.confusion for n in row):
            raise ValueError("a count is negative")
        return self

    @property
    def shares(self) -> tuple[tuple[float, ...], ...]:
        """The matrix as shares of the truth: each row sums to one, or is all zero."""
        return tuple(tuple(n / max(1, sum(row)) for n in row) for row in self.confusion)

    def mistakes(self, most: int) -> list[tuple[str, str, int]]:
        """Return the most frequent mistakes as (truth, answer, images)."""
        found = [(n, i, j) for i, row in enumerate(self.confusion) for j, n in enumerate(row) if i != j and n]
        found.sort(key=lambda mistake: -mistake[0])
        return [(self.classes[i].label, self.classes[j].label, n) for n, i, j in found[:most]]

    def worst(self, most: int) -> list[ClassScore]:
        """Return the classes, the lowest F1 first when there are more than `most`."""
        if len(self.classes) <= most:
            return list(self.classes)
        return sorted(self.classes, key=lambda c: c.f1 if c.f1 == c.f1 else -1.0)[:most]


class Epoch(Read):
    """One pass over the training images."""

    epoch: int
    train_loss: float
    validation_loss: float
    validation_accuracy: float
    learning_rate: float


class Training(Read):
    """Facts of the stage `train`."""

    framework: str
    architecture: str
    parameters: int
    best_epoch: int
    stopped_early: bool
    history: tuple[Epoch, ...]


class Images(Read):
    """Facts of the stage `data`: how many images each split has."""

    images: dict[str, int] = Field(min_length=1)


class Pass(Read):
    """What became of one graph pass of a chain."""

    name: str
    outcome: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    nodes_before: int
    nodes_after: int | None = None
    seconds: float = 0.0
    max_abs_error: float | None = None
    speed: float | None = None
    speed_low: float | None = None
    speed_high: float | None = None


class Passes(Read):
    """Facts of the stage `optimize` for a chain."""

    passes: tuple[Pass, ...] = Field(min_length=1)


def chains(report: RunReport) -> dict[str, tuple[Pass, ...]]:
    """Return the passes of every candidate that is a chain, by its name."""
    found = {}
    for entry in report.stages:
        if entry.stage == "optimize" and entry.candidate is not None:
            try:
                found[entry.candidate] = Passes.model_validate(entry.facts).passes
            except ValidationError:  # of a single pass, or of another schema
                continue
    return found


def read(report: RunReport, stage: str, model: type[Model]) -> Model | None:
    """Return a main-line stage's facts, or None where it did not run or its facts have another shape."""
    entry = report.stage(stage)
    try:
        return None if entry is None else model.model_validate(entry.facts)
    except ValidationError:
        return None


def flatten(values: JsonObject, prefix: str = "") -> list[tuple[str, str]]:
    """Return nested JSON as (dotted key, text) pairs, in their order; a list of plain values is one text."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            value = {str(index): item for index, item in enumerate(value)}
        if isinstance(value, dict) and value:
            rows += flatten(value, f"{name}.")
        else:
            rows.append((name, _text(value)))
    return rows


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or "none"
    if value is None or value == {}:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
