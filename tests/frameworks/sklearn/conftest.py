"""Estimators as ONNX models, and the data that they are fitted on."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io

from frameworks.sklearn.brought_estimator import SklearnModel
from frameworks.sklearn.classifier_training import SklearnTraining
from frameworks.sklearn.skl2onnx import Skl2Onnx
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from tasks.export import export
from tasks.numerics import NumericsConfig, numerics
from tasks.structure import StructureConfig, structure

FEATURES, CLASSES = 8, 3
RNG = np.random.default_rng(0)
LABELS = np.arange(180) % CLASSES
POINTS = (RNG.standard_normal((CLASSES, FEATURES))[LABELS] * 2 + RNG.standard_normal((180, FEATURES))).astype(
    np.float32
)
NAMES = np.array(["apple", "pear", "quince"])


@dataclass(frozen=True)
class Exported:
    """A model in both forms."""

    out: Workspace
    model: Artifact
    golden: Artifact
    signature: Signature
    report: Report[Any]

    @property
    def path(self) -> Path:
        return self.out.path(self.model)

    def gates(self, limit: float = 1e-4) -> tuple[Report[Any], Report[Any]]:
        checked = structure(StructureConfig(), self.out, model=self.model)
        config = NumericsConfig(max_rel_error=limit)
        return checked, numerics(config, self.out, model=self.model, golden=self.golden)

    def pass_gates(self) -> None:
        for report in self.gates():
            report.raise_if_blocked()


@pytest.fixture
def exported(workspace: Callable[..., Workspace], tmp_path: Path) -> Callable[..., Exported]:
    """Return a function that brings an estimator (or trains one, where there is none) and exports it."""

    def make(
        estimator: Any = None, inputs: dict[str, np.ndarray] | None = None, *, labels: bool = True, opset: int = 18
    ) -> Exported:
        inputs = {"features": POINTS} if inputs is None else inputs
        count = len(next(iter(inputs.values())))
        split = ArraySplit(inputs, np.arange(count) % CLASSES if labels else None)
        specs = tuple(
            TensorSpec(name=name, dtype="str" if a.dtype.kind == "U" else a.dtype.name, shape=("batch", *a.shape[1:]))
            for name, a in inputs.items()
        )
        signature = Signature(inputs=specs, outputs=(), layout="none", labels=tuple(NAMES) if labels else ())
        config: SklearnTraining | SklearnModel = SklearnTraining()
        if estimator is not None:
            path = tmp_path / "brought.skops"
            skops.io.dump(estimator, path)
            config = SklearnModel(model=path, trusted=skops.io.get_untrusted_types(file=path))
        out = workspace()
        train = config.fit(dict.fromkeys(("train", "validation", "test"), split), signature, out)
        signature, golden = train.facts.signature, train.artifacts["golden"]
        later = workspace(out.store)
        report = export(
            Skl2Onnx(opset=opset), later, model=train.artifacts["model"], signature=signature, golden=golden
        )
        return Exported(later, report.artifacts["model"], golden, signature, report)

    return make
