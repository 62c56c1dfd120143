"""Biases are corrected one layer after the other, and never for the worse."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.calibration.ranges import Ranges
from gauntlet.core.arrays import NamedArrays
from gauntlet.metrics.output_noise import worst_noise_db
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.quantize.static import StaticInt8
from wings.bias_correction import sequential
from wings.bias_correction.sequential import correct_biases

CHANNELS = 16


def separable_network(depth: int, *, batch: str = "n", with_bias: bool = True) -> onnx.ModelProto:
    """Depthwise and pointwise convolutions, each with a bias and a Relu: their rounding errors have a mean."""
    random, lines, weights = np.random.default_rng(0), list[str](), dict[str, np.ndarray]()

    def layer(values: np.ndarray, attributes: str = "") -> None:
        place = len(lines)
        weights[f"w{place}"] = values.astype(np.float32)
        inputs = f"r{place - 1}, w{place}" if lines else "x, w0"
        if with_bias:
            weights[f"b{place}"] = random.normal(0, 0.1, len(values)).astype(np.float32)
            inputs += f", b{place}"
        lines.append(f"c{place} = Conv {attributes} ({inputs}) r{place} = Relu(c{place})")

    layer(random.normal(0, 0.3, (CHANNELS, 3, 3, 3)), "<pads=[1, 1, 1, 1]>")
    for _ in range(depth):
        spread = np.exp(random.normal(0, 0.8, (CHANNELS, 1, 1, 1)))
        kernels = random.normal(0.05, 0.3, (CHANNELS, 1, 3, 3)) * spread
        layer(kernels, f"<pads=[1, 1, 1, 1], group={CHANNELS}>")
        layer(random.normal(0.02, 0.35, (CHANNELS, CHANNELS, 1, 1)))
    body = "\n".join([*lines, f"y = GlobalAveragePool(r{len(lines) - 1})"])
    proto = onnx_text.model(
        f"separable (float[{batch},3,12,12] x) => (float[{batch},{CHANNELS},1,1] y) {{ {body} }}", weights
    )
    for number, node in enumerate(proto.graph.node):
        node.name = f"node{number}"
    return proto


def images(count: int, seed: int) -> NamedArrays:
    random = np.random.default_rng(seed)
    brightness = np.exp(random.normal(0, 0.7, (count, 1, 1, 1)))
    return {"x": (random.normal(0, 1, (count, 3, 12, 12)) * brightness).astype(np.float32)}


def quantized(proto: onnx.ModelProto, folder: Path, samples: NamedArrays) -> tuple[Path, Path]:
    """Return the float model and its static INT8 form with exact ranges."""
    prepared, target = folder / "prepared.onnx", folder / "quantized.onnx"
    onnx.save(proto, prepared)
    whole = onnx.load(prepared)
    names = [name for node in proto.graph.node for name in node.output if name]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name != "y")
    values = batched_inference(open_session(whole.SerializeToString(), level="off"), samples).run(64) | samples
    ranges = {name: (float(values[name].min()), float(values[name].max())) for name in [*names, "x"]}
    recipe = StaticInt8(qdq_placement="inputs")
    known = Ranges.model_validate({"images": 1, "methods": {recipe.calibration_method.name: ranges}})
    recipe.quantize(prepared, prepared, known, target)
    return prepared, target


def noise_db(model: Path, reference: Path, samples: NamedArrays) -> float:
    outputs = [[*batched_inference(open_session(path), samples).run(8).values()] for path in (model, reference)]
    return worst_noise_db(*outputs)


def mean_shift(model: Path, reference: Path, samples: NamedArrays) -> float:
    """Return how far the means of the output's channels are apart, at most."""
    means = [batched_inference(open_session(path), samples).run(8)["y"].mean(axis=0) for path in (model, reference)]
    return float(np.abs(means[0] - means[1]).max())


@pytest.mark.parametrize(("depth", "batch"), [(6, "n"), (12, "n"), (6, "1"), (6, "5")])
def test_outputs_of_other_samples_get_nearer_to_those_of_the_float_model(
    tmp_path: Path, depth: int, batch: str
) -> None:
    samples, others = images(64, 1), images(200, 2)
    prepared, target = quantized(separable_network(depth, batch=batch), tmp_path, samples)
    before, shift = noise_db(target, prepared, others), mean_shift(target, prepared, samples)
    assert correct_biases(target, prepared, samples) > 0
    assert noise_db(target, prepared, others) > before
    assert mean_shift(target, prepared, samples) < shift / 2


def far_from_those_judged() -> tuple[onnx.ModelProto, NamedArrays]:
    x = images(64, 1)["x"]
    return separable_network(6), {"x": np.stack([x[::2], -30 * x[1::2]], axis=1).reshape(x.shape)}


def worse_as_a_whole() -> tuple[onnx.ModelProto, NamedArrays]:
    """Rounding shifts the small channel alike in all samples, the large one down in one half and up in the other."""
    text = "two (float[n,2,1,1] x) => (float[n,2,1,1] y) { y = Conv(x, w, b) }"
    proto = onnx_text.model(text, {"w": np.eye(2, dtype=np.float32)[..., None, None], "b": np.zeros(2, np.float32)})
    proto.graph.node[0].name, sample = "conv", np.arange(64)
    large = 4.0 * (1 + sample // 2 % 8) + np.where(sample % 2, -0.4, 0.4)
    large[:4:2] = 0, 255  # a step of 1
    return proto, {"x": np.stack([large, sample // 2 % 4 + 0.3], axis=1).astype(np.float32)[..., None, None]}


def near_enough() -> tuple[onnx.ModelProto, NamedArrays]:
    return separable_network(0), images(64, 1)


@pytest.mark.parametrize("case", [far_from_those_judged, worse_as_a_whole, near_enough])
def test_file_keeps_its_bytes_where_the_correction_does_not_help(
    tmp_path: Path, case: Callable[[], tuple[onnx.ModelProto, NamedArrays]]
) -> None:
    """It is made from one half of the samples, and judged with the other."""
    proto, samples = case()
    prepared, target = quantized(proto, tmp_path, samples)
    content = target.read_bytes()
    assert correct_biases(target, prepared, samples) == 0
    assert target.read_bytes() == content


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "MAX_BYTES", 1_000_000)
    prepared, target = quantized(separable_network(6), tmp_path, images(64, 1))
    peaks = []
    for count in (16, 512):
        content, samples = target.read_bytes(), images(count, 1)
        tracemalloc.start()
        correct_biases(target, prepared, samples)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        target.write_bytes(content)
    assert peaks[1] < 3 * peaks[0]


def test_outputs_and_inputs_without_a_name_are_no_obstacle(tmp_path: Path) -> None:
    """As the indices of a MaxPool, and the lower limit of a Clip."""
    text = """
        m (float[n,16,12] x) => (float[n,16,11] y)
        <float[16,16,1] w, float[16] b, float[16,16,1] v, float[16] c, float six = {6}>
        {
            p = MaxPool<kernel_shape = [2]>(x) h = Conv(p, w, b)
            r = Clip(h, , six) y = Conv(r, v, c)
        }
    """
    random = np.random.default_rng(3)
    spread = np.exp(random.normal(0, 1.5, (16, 1, 1)))
    weights = {"w": random.normal(0, 0.3, (16, 16, 1)) * spread, "v": random.normal(0.3, 0.3, (16, 16, 1))}
    proto = onnx_text.model(text, weights)
    proto.graph.node[0].output.append("")
    for number, node in enumerate(proto.graph.node):
        node.name = f"node{number}"
    samples = {"x": random.normal(0, 1, (64, 16, 12)).astype(np.float32)}
    prepared, target = quantized(proto, tmp_path, samples)
    assert correct_biases(target, prepared, samples) > 0


def test_layers_without_a_bias_are_left_alone(tmp_path: Path) -> None:
    prepared, target = quantized(separable_network(6, with_bias=False), tmp_path, samples := images(64, 1))
    assert correct_biases(target, prepared, samples) == 0
