"""Models that are calibrated and quantized as the flow does it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text

from gauntlet.calibration.methods import MinMax, Percentile
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from tasks.calibrate import CalibrateConfig, CalibrateFacts, calibrate
from tasks.quantize import QuantizeFacts, methods_of, quantize

COUNT = 96
QUICK = (MinMax(), Percentile(percentile=99.9))
Answer = tuple[Workspace, Report[CalibrateFacts]]


def calibrated(
    out: Workspace, model: Artifact, calibration: Artifact, test: Artifact, *methods: Any, **config: Any
) -> Report[CalibrateFacts]:
    wanted = methods or (MinMax(),)
    return calibrate(CalibrateConfig(**config), out, model=model, calibration=calibration, test=test, methods=wanted)


def quantized(
    recipe: Any, out: Workspace, model: Artifact, calibration: Artifact, test: Artifact, **config: Any
) -> Report[QuantizeFacts]:
    methods = methods_of((recipe,))
    found = calibrated(out, model, calibration, test, *methods, **config).artifacts if methods else {}
    return quantize(recipe, out, model=model, prepared=found.get("prepared"), ranges=found.get("ranges"))


def brought(out: Workspace, proto: onnx.ModelProto) -> tuple[Artifact, Artifact]:
    """Store a model and samples for it."""
    signature_from_graph(proto).write(proto)
    onnx.save(proto, out.folder / "brought.onnx")
    rng = np.random.default_rng(0)
    samples = {}
    for value in proto.graph.input:
        if value.name not in {tensor.name for tensor in proto.graph.initializer}:
            axes = [axis.dim_value or 1 for axis in value.type.tensor_type.shape.dim][1:]
            samples[value.name] = rng.standard_normal((16, *axes)).astype(np.float32)
    np.savez(out.folder / "samples.npz", **samples)
    return out.store_file(out.folder / "brought.onnx"), out.store_file(out.folder / "samples.npz")


def applied(recipe: Any, out: Workspace, proto: onnx.ModelProto) -> Report[QuantizeFacts]:
    model, samples = brought(out, proto)
    return quantized(recipe, out, model, samples, samples)


def network(path: Path, batch: Any = "n", scale: float = 1.0) -> Path:
    """Write convolutions with a residual sum, a constant branch, and a Gemm; `scale` reaches the first weights."""
    text = f"""
        network (float[{batch},3,12,12] x) => (float[{batch},4] y)
        <float[8,3,3,3] w1, float[8,8,3,3] w2, float[8,4] w3, float zero = {{0}}, float three = {{3}}>
        {{
            c1 = Conv<pads = [1, 1, 1, 1]>(x, w1)
            r1 = Relu(c1)
            c2 = Conv<pads = [1, 1, 1, 1]>(r1, w2)
            sum = Add(c2, r1)
            nothing = Mul(sum, zero)
            constant = Add(nothing, three)
            both = Add(sum, constant)
            mean = GlobalAveragePool(both)
            flat = Flatten(mean)
            y = Gemm(flat, w3)
        }}
    """
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 4)}
    weights = {name: rng.standard_normal(shape) / 3 for name, shape in shapes.items()}
    weights["w1"] *= scale
    proto = onnx_text.model(text, weights, opset=17)
    signature_from_graph(proto).replace(labels=tuple("abcd")).write(proto)
    onnx.save(proto, path)
    return path


def images(count: int = COUNT, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3, 12, 12)).astype(np.float32)
