"""The model with switches has the outputs of the files that ONNX Runtime's quantizer writes."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_text
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from gauntlet.calibration.ranges import Ranges
from gauntlet.runtime.session import open_session
from tasks.quantize.static import StaticInt8
from wings.repair.switchable_model import KEEP_PAIRS, SwitchableModel

RECIPE = StaticInt8()
INPUTS_ONLY = StaticInt8(qdq_placement="inputs")
NODES = ("first", "second", "third", "sum", "pool", "flat", "last")
"""Those of the network below that can be quantized."""


def network() -> onnx.ModelProto:
    """Return a small network; the quantizer drops its Relu and its Clip, whose limits are inputs."""
    text = """
        network (float[n,3,8,8] input) => (float[n,10] y)
        < float[8,3,3,3] w1, float[8] b1, float[8,8,3,3] w2, float[8,8,3,3] w3,
            float[10,8] w4, float[10] b4, float low = {0}, float high = {6} > {
            [first] a = Conv<pads = [1, 1, 1, 1]>(input, w1, b1) [relu] b = Relu(a)
            [second] c = Conv<pads = [1, 1, 1, 1]>(b, w2) [clip] d = Clip(c, low, high)
            [third] e = Conv<pads = [1, 1, 1, 1]>(d, w3) [sum] f = Add(e, b) [pool] g = GlobalAveragePool(f)
            [flat] h = Flatten(g) [last] y = Gemm<transB = 1>(h, w4, b4)
        }
    """
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "b1": 8, "w2": (8, 8, 3, 3), "w3": (8, 8, 3, 3), "w4": (10, 8), "b4": 10}
    return onnx_text.model(text, {name: rng.normal(0, 0.3, shape) for name, shape in shapes.items()}, opset=17)


def outputs(model: Path, samples: dict[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = open_session(model, level="off", settings=KEEP_PAIRS).run(None, samples)[0]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("switches")


@pytest.fixture(scope="module")
def ranges(folder: Path) -> Ranges:
    rng = np.random.default_rng(1)
    samples = {"input": rng.normal(0, 1, (20, 3, 8, 8)).astype(np.float32)}
    proto = network()
    onnx.save(proto, folder / "float.onnx")
    for node in proto.graph.node[:-1]:
        proto.graph.output.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None))
    session = open_session(proto.SerializeToString(), level="off")
    seen = samples | dict(zip([o.name for o in session.get_outputs()], session.run(None, samples), strict=True))
    known = {name: (float(array.min()), float(array.max())) for name, array in seen.items()}
    np.savez(folder / "samples.npz", **samples)
    return Ranges(images=20, methods={RECIPE.calibration_method.name: known})


def switchable(folder: Path, ranges: Ranges, recipe: StaticInt8) -> SwitchableModel:
    source, file = folder / "float.onnx", folder / f"{recipe.name}.onnx"
    recipe.quantize(source, source, ranges, file)
    return SwitchableModel(file, source, inputs_only=recipe == INPUTS_ONLY)


def gives_float_outputs(
    folder: Path, ranges: Ranges, recipe: StaticInt8, network: SwitchableModel, left_out: set[str]
) -> bool:
    """Require the outputs of the file with these nodes in float; return whether they are the float model's."""
    samples = dict(np.load(folder / "samples.npz"))
    source, file = folder / "float.onnx", folder / "some.onnx"
    recipe.quantize(source, source, ranges, file, float_nodes=frozenset(left_out))
    actual = network.run(samples, network.nodes - left_out)["y"]
    np.testing.assert_array_equal(actual, outputs(file, samples))
    return np.allclose(actual, outputs(source, samples), atol=1e-5)


@pytest.fixture(scope="module")
def around(folder: Path, ranges: Ranges) -> SwitchableModel:
    return switchable(folder, ranges, RECIPE)


@pytest.fixture(scope="module")
def before(folder: Path, ranges: Ranges) -> SwitchableModel:
    return switchable(folder, ranges, INPUTS_ONLY)


def test_limits_of_an_output_stay_where_nothing_is_rounded(tmp_path: Path) -> None:
    """The quantizer drops them, and names what it rounds to an output otherwise than other tensors."""
    source, file = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    nodes = "[product] h = Gemm(x, w, b) [relu] y = Relu(h)"
    onnx.save(onnx_text.model(f"m (float[n,8] x) => (float[n,4] y) <float[8,4] w, float[4] b> {{ {nodes} }}"), source)
    samples = {"x": np.random.default_rng(0).normal(0, 1, (20, 8)).astype(np.float32)}
    expected = outputs(source, samples)
    known = {"x": (-3.0, 3.0), "h": (0.0, 3.0), "y": (0.0, float(expected.max()))}
    RECIPE.quantize(source, source, Ranges(images=20, methods={"minmax": known}), file)
    switchable = SwitchableModel(file, source)
    np.testing.assert_allclose(switchable.run(samples, ())["y"], expected, atol=1e-5)
    np.testing.assert_array_equal(switchable.run(samples, switchable.nodes)["y"], outputs(file, samples))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@example({"pool", "last"})  # Flatten is quantized only where its input is
@given(left_out=st.sets(st.sampled_from(NODES)))
def test_switches_give_the_outputs_of_the_quantized_file_for_any_choice_of_nodes(
    folder: Path, ranges: Ranges, around: SwitchableModel, left_out: set[str]
) -> None:
    assert around.nodes == set(NODES)
    is_float = gives_float_outputs(folder, ranges, RECIPE, around, left_out)
    assert is_float == (left_out >= {*NODES} - {"flat"})  # a Flatten alone is not quantized


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(left_out=st.sets(st.sampled_from(sorted({*NODES} - {"pool", "flat"}))))
def test_switches_give_the_outputs_of_the_file_that_rounds_the_inputs_of_products_and_sums(
    folder: Path, ranges: Ranges, before: SwitchableModel, left_out: set[str]
) -> None:
    assert before.nodes == {*NODES} - {"pool", "flat"}
    is_float = gives_float_outputs(folder, ranges, INPUTS_ONLY, before, left_out)
    assert is_float == (left_out == before.nodes)
