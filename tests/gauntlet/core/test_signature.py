"""The contract that a model carries inside itself."""

import onnx
import onnx_text
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from gauntlet.core.errors import StageError
from gauntlet.core.signature import METADATA_KEY, Preprocessing, Signature, TensorSpec

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
