"""The contract that a model carries inside itself."""

import numpy as np
import onnx
import onnx_text
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from gauntlet.core.errors import StageError
from gauntlet.core.signature import METADATA_KEY, Preprocessing, Signature, TensorSpec
from gauntlet.core.states import sample_types, states_by_name, states_by_shape

WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
POSITIVE = st.floats(1e-6, 1e6)
SPECS = st.builds(
    TensorSpec,
    name=WORDS,
    dtype=st.sampled_from(["float32", "int64"]),
    shape=st.lists(st.integers(1, 512) | st.sampled_from(["batch", "length"]), max_size=4).map(tuple),
)
SIGNATURES = st.builds(
    Signature,
    task=st.sampled_from(["classification", "arrays"]),
    inputs=st.lists(SPECS, min_size=1, max_size=2).map(tuple),
    outputs=st.lists(SPECS, max_size=2).map(tuple),
    layout=st.sampled_from(["NCHW", "NHWC", "none"]),
    preprocessing=st.none()
    | st.builds(
        Preprocessing,
        height=st.integers(1, 512),
        width=st.integers(1, 512),
        scale=POSITIVE,
        mean=st.lists(POSITIVE, max_size=3).map(tuple),
        std=st.lists(POSITIVE, max_size=3).map(tuple),
    ),
    labels=st.lists(WORDS, max_size=3).map(tuple),
)


def relu() -> onnx.ModelProto:
    return onnx_text.model("relu (float[batch] x) => (float[batch] y) { y = Relu(x) }")


@given(signature=SIGNATURES)
def test_signature_is_the_same_when_it_went_through_a_model_file(signature: Signature) -> None:
    model = relu()
    signature.write(model)
    assert Signature.read(onnx.load_model_from_string(model.SerializeToString())) == signature


@given(old=SIGNATURES, new=SIGNATURES)
def test_write_replaces_only_the_signature_when_there_is_other_metadata(old: Signature, new: Signature) -> None:
    model = relu()
    helper.set_model_props(model, {"author": "someone"})
    old.write(model)
    new.write(model)
    assert Signature.read(model) == new
    assert sorted(p.key for p in model.metadata_props) == ["author", METADATA_KEY]


def test_read_fails_when_the_model_carries_no_signature() -> None:
    with pytest.raises(StageError, match="has no signature"):
        Signature.read(relu())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"inputs": 3}', '{"inputs": [], "outputs": [], "color": "red"}'])
def test_read_fails_when_the_signature_is_damaged(text: str) -> None:
    model = relu()
    helper.set_model_props(model, {METADATA_KEY: text})
    with pytest.raises(StageError, match=r"signature .*cannot be read"):
        Signature.read(model)


def types(**widths: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return sample_types({name.replace("__", "."): np.zeros((2, width), np.float32) for name, width in widths.items()})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["h"], ["h_out"]),
        (["h"], ["hn"]),
        (["h"], ["new_h"]),
        (["h0", "c0"], ["hn", "cn"]),
        (["state"], ["stateN"]),
        (["state_in"], ["state_out"]),
        (["inputState"], ["outputState"]),
        (["past_key_values__0__key", "past_key_values__1__key"], ["present__0__key", "present__1__key"]),
        (["r1i", "r2i"], ["r1o", "r2o"]),
        (["cache_1", "cache_2"], ["cache_1_out", "cache_2_out"]),
    ],
)
def test_state_is_recognized_by_its_name(before: list[str], after: list[str]) -> None:
    inputs, outputs = types(x=3, **dict.fromkeys(before, 4)), types(y=4, **dict.fromkeys(after, 4))
    expected = [tuple(name.replace("__", ".") for name in pair) for pair in zip(before, after, strict=True)]
    assert list(states_by_name(inputs, outputs)) == expected


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"x": 3, "h": 4}, {"y": 4, "h_out": 5}),  # another shape: a cache that grows
        ({"input": 4, "gain": 1}, {"output": 4}),
        ({"sample": 4, "timestep": 1}, {"out_sample": 4}),  # a denoiser's only output is its prediction
        ({"state": 4}, {"state_out": 4, "y": 1}),  # no input is left for data
    ],
)
def test_names_alone_make_no_state(inputs: dict[str, int], outputs: dict[str, int]) -> None:
    assert states_by_name(types(**inputs), types(**outputs)) == ()


def test_state_is_recognized_as_the_only_pair_of_its_shape() -> None:
    outputs = types(y=2, z=4)
    for name in ("memory", "input_2", "arg1"):
        inputs = types(x=3, **{name: 4})
        assert states_by_shape(inputs, outputs, (), "y", [*inputs]) == ((name, "z"),)
        assert states_by_shape(inputs, outputs, (), "z", [*inputs]) == ()  # the prediction
        assert states_by_shape(inputs, outputs, (), "y", ["x"]) == ()  # of any length
        assert states_by_shape(types(x=4, **{name: 4}), outputs, (), "y", [*inputs]) == ()  # one of two
        assert states_by_shape(types(**{name: 4}), outputs, (), "y", [*inputs]) == ()  # no input is left for data
    assert states_by_shape(types(x=3, mask=4), outputs, (), "y", ["x", "mask"]) == ()  # its name says otherwise


def test_states_are_paired_in_their_order_where_the_outputs_have_numbers() -> None:
    inputs, fixed = types(x=3, h=4, c=4), ["x", "h", "c"]
    numbered, named = types(output_0=2, output_1=4, output_2=4), types(y=2, mean=4, deviation=4)
    assert sorted(states_by_shape(inputs, numbered, (), "output_0", fixed)) == [("c", "output_2"), ("h", "output_1")]
    assert states_by_shape(inputs, named, (), "y", fixed) == ()
