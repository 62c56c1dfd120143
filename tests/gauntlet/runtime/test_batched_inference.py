"""How samples become calls: batches, fixed batches, whole inputs, and everything that does not fit."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx_text
import pretrained_models
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.core.errors import StageError
from gauntlet.core.ragged import without_padding
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.engines.base import TensorInfo
from gauntlet.runtime.session import open_session


def doubling(shape: str) -> bytes:
    """Return a model that adds its input to itself."""
    return onnx_text.model(f"double (float[{shape}] x) => (float[{shape}] y) {{ y = Add(x, x) }}").SerializeToString()


DYNAMIC, FIXED = open_session(doubling("n,3")), open_session(doubling("4,3"))


@given(count=st.integers(1, 13), batch=st.integers(1, 15), at_once=st.integers(1, 4))
def test_calls_answer_every_sample_once_when_the_batch_is_any(count: int, batch: int, at_once: int) -> None:
    samples = np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32)
    for session in (DYNAMIC, FIXED):
        assert np.array_equal(batched_inference(session, {"x": samples}).run(batch, at_once)["y"], 2 * samples)


def test_calls_take_the_fixed_batch_when_another_is_wanted() -> None:
    samples = {"x": np.ones((6, 3), np.float32)}
    assert batched_inference(FIXED, samples).batch(32) == 4
    assert batched_inference(DYNAMIC, samples).batch(32) == 32
    for start, size in ((0, 4), (0, 1), (4, 4)):
        assert batched_inference(FIXED, samples).feed(start, size)["x"].shape == (4, 3)  # the last is filled up


@pytest.mark.parametrize("session", [DYNAMIC, FIXED])
def test_outputs_of_a_call_keep_their_values_during_later_and_parallel_calls(session: object) -> None:
    def call(value: int) -> np.ndarray:
        return batched_inference(session, {"x": np.full((4, 3), value, np.float32)}).run(4)["y"]

    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(call, range(200)))
    assert [np.unique(array).tolist() for array in outputs] == [[2 * value] for value in range(200)]


def test_calls_feed_one_sample_whole_when_arrays_have_one_axis_more(tmp_path: Path) -> None:
    model, samples = pretrained_models.state(tmp_path)
    prepared = batched_inference(open_session(model), samples)
    assert (prepared.one_sample_per_call, prepared.batch(8)) == (True, 1)
    answers = prepared.run(8)
    session = open_session(model)
    for i in (0, 7, 39):
        state = session.run(["h_next"], {name: np.asarray(array[i]) for name, array in samples.items()})[0]
        assert np.array_equal(answers["h_next"][i], state)


@pytest.mark.parametrize("dtype", [np.float64, np.uint8, np.int64, np.float16])
def test_calls_give_the_model_its_own_type_when_nothing_is_lost(dtype: type) -> None:
    answers = batched_inference(DYNAMIC, {"x": np.arange(6).reshape(2, 3).astype(dtype)}).run(2)["y"]
    assert answers.dtype == np.float32
    assert answers.tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize(
    ("dtype", "samples", "told"),
    [
        ("float", {"z": np.ones((2, 3))}, "no samples for the input 'x'; there are samples for"),
        ("float", {"x": np.ones(2)}, "1 axes for an input of 2"),
        ("float", {"x": np.ones((2, 2, 2, 3))}, "4 axes for an input of 2"),
        ("float", {"x": np.array([["a", "b", "c"]])}, "takes tensor.float.; the samples are <U1. Fix: give numbers"),
        ("int64", {"x": np.ones((2, 3))}, "are float64, which would lose information. Fix: give whole numbers"),
        ("float", {"x": np.array([[1, 2, 1e300]])}, r"takes tensor.float.; a sample is beyond its range. Fix: scale"),
        ("float16", {"x": np.array([[1, 2, 70_000]])}, r"takes tensor.float16.; a sample is beyond its range"),
        ("uint8", {"x": np.array([[0, 399]])}, r"takes uint8, 0 to 255; the samples are int64 from 0 to 399. Fix:"),
        ("uint8", {"x": np.array([[-1, 5]], np.int8)}, r"takes uint8, 0 to 255; the samples are int8 from -1 to 5"),
        ("int32", {"x": np.array([[2**31]])}, r"takes int32, .* to 2147483647; the samples are int64"),
        ("bool", {"x": np.array([[0, 2]])}, r"takes bool, 0 to 1; the samples are int64 from 0 to 2"),
        ("bfloat16", {"x": np.ones((2, 3))}, "tensor.bfloat16., which NumPy has no type for"),
    ],
)
def test_calls_are_refused_when_samples_do_not_fit(dtype: str, samples: dict, told: str) -> None:
    model = onnx_text.model(f"model ({dtype}[n,3] x) => ({dtype}[n,3] y) {{ y = Identity(x) }}")
    with pytest.raises(StageError, match=told):
        batched_inference(open_session(model.SerializeToString()), samples)


def test_calls_convert_integers_that_a_narrower_type_holds() -> None:
    model = onnx_text.model("model (uint8[n,2] x) => (uint8[n,2] y) { y = Identity(x) }")
    samples = {"x": np.array([[0, 255]])}
    assert batched_inference(open_session(model.SerializeToString()), samples).run(1)["y"].tolist() == [[0, 255]]


def test_calls_fail_and_say_how_when_the_runtime_fails() -> None:
    with pytest.raises(StageError, match=r"fails on inputs of shape \{'x': \(2, 5\)\}"):
        batched_inference(DYNAMIC, {"x": np.ones((3, 5), np.float32)}).run(2)


def test_calls_fail_when_an_output_has_no_entry_a_sample() -> None:
    model = onnx_text.model("sum (float[n,3] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }")
    session = open_session(model.SerializeToString())
    samples = np.ones((4, 3), np.float32)
    with pytest.raises(StageError, match=r"output 'y' has shape \(\) for 2 samples, not one entry per sample"):
        batched_inference(session, {"x": samples}).run(2)
    whole = batched_inference(session, {"x": samples[:, None]}).run(1)["y"]
    assert whole.tolist() == [3, 3, 3, 3]  # the way out it names


def test_model_that_returns_no_tensor_is_refused() -> None:
    model = onnx_text.model("pair (float[n,3] x) => (seq(float[n,3]) y) { y = SequenceConstruct(x, x) }")
    with pytest.raises(StageError, match=r"no output is a tensor.* Fix: return one"):
        batched_inference(open_session(model.SerializeToString()), {"x": np.ones((2, 3), np.float32)}).run(2)


def test_outputs_that_change_their_length_from_call_to_call_are_padded() -> None:
    model = onnx_text.model("search (float[n,3] x) => (int64[2,found] y) { y = NonZero(x) }")
    samples = np.array([[[1, 0, 0]], [[0, 0, 0]], [[1, 1, 0]]], np.float32)
    found = batched_inference(open_session(model.SerializeToString()), {"x": samples}).run(1)["y"]
    assert [without_padding(one).tolist() for one in found] == [[[0], [0]], [], [[0, 0], [0, 1]]]


def test_output_of_a_model_of_one_sample_a_call_is_that_of_the_sample_unless_it_always_has_one_row() -> None:
    model = onnx_text.model(
        """search (float[1,3] x) => (int64[found,2] places, float[1,3] y, float total)
        { all = NonZero(x) places = Transpose<perm = [1, 0]>(all) y = Relu(x) total = ReduceSum<keepdims = 0>(x) }"""
    )
    samples = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 1]], np.float32)
    found = batched_inference(open_session(model.SerializeToString()), {"x": samples}).run(16)
    assert {name: array.shape for name, array in found.items()} == {"places": (3, 3, 2), "y": (3, 3), "total": (3,)}
    assert without_padding(found["places"][1]).tolist() == [[0, 1], [0, 2]]


def test_output_that_changes_its_number_of_axes_is_refused() -> None:
    class Changing:
        def get_inputs(self) -> list[TensorInfo]:
            return [TensorInfo("x", "tensor(float)", (3,))]

        def get_outputs(self) -> list[TensorInfo]:
            return [TensorInfo("y", "tensor(float)", ())]

        def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [feed["x"] if feed["x"][0] else feed["x"][None]]

    with pytest.raises(StageError, match="output 'y' changes its number of axes from call to call"):
        batched_inference(Changing(), {"x": np.array([[0, 1, 1], [1, 1, 1]], np.float32)}).run(1)


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_inputs_with_unlike_numbers_of_samples_are_refused(rows: int) -> None:
    """Rows that are left over would be dropped, and one alone would be that of all samples."""
    model = onnx_text.model("m (float[n] a, float[n] b) => (float[n] y) { y = Add(a, b) }")
    session = open_session(model.SerializeToString())
    samples = {"a": np.ones(6, np.float32), "b": np.ones(rows, np.float32)}
    with pytest.raises(StageError, match=f"unlike numbers of samples: 6 of 'a', {rows} of 'b'"):
        batched_inference(session, samples)
