"""A brought model and its samples in a store, as the stage gets them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.onnx_model.model_file import copy_model, model_files
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.source_session import open_source
from tasks.normalize import normalize
from tasks.normalize.config import NormalizeConfig, NormalizeFacts

Workspaces = Callable[..., Workspace]
Samples = dict[str, np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


class Brought:
    """A model in a store, with the golden outputs of some samples."""

    def __init__(self, out: Workspace, proto: onnx.ModelProto | Path, samples: Samples) -> None:
        path = out.folder / "model.onnx"
        if isinstance(proto, Path):
            copy_model(proto, path)
        else:
            signature_from_graph(proto).write(proto)
            onnx.save(proto, path)
        outputs = batched_inference(open_source(path), samples).run(1)
        Golden({"real": GoldenCase(samples, outputs)}, outputs).save(out.folder / "golden.npz")
        self.out, self.samples = out, samples
        self.model: Artifact = out.store_file(path, *model_files(path)[1:])
        self.golden = out.store_file(out.folder / "golden.npz")

    def normalize(self, **config: object) -> Report[NormalizeFacts]:
        settings = NormalizeConfig.model_validate(config)
        return normalize(settings, self.out, model=self.model, golden=self.golden)

    def result(self, report: Report[NormalizeFacts]) -> onnx.ModelProto:
        return onnx.load(self.out.path(report.artifacts["normalized"]))


def outcomes(report: Report[NormalizeFacts]) -> dict[str, str]:
    return {step.step: step.outcome for step in report.facts.steps if step.outcome != "not needed"}
