"""Weight-only recipes: smaller files near the float outputs, for products of some size, fused attention included."""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
import transformer_models
from processors import on_haswell

from gauntlet.core.artifact import Artifact
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.metrics.error_metrics import sqnr_db
from gauntlet.onnx_model.recognition import Operators
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.session import open_session
from tasks.quantize import QuantizeConfig, quantize
from tasks.quantize.auto import recommended_recipes
from tasks.quantize.dynamic import DynamicInt8
from wings.graph_passes.transformers import TransformerFusions
from wings.weight_only.recipe import WeightOnly

KeepModel = Callable[[onnx.ModelProto], tuple[Workspace, Artifact]]
SMALL = 1024
RECIPES = [
    WeightOnly(min_weights=SMALL),
    WeightOnly(bits=4, min_weights=SMALL),
    WeightOnly(activations="f32", min_weights=SMALL),
    WeightOnly(bits=4, activations="f32", symmetric=True, min_weights=SMALL),
    WeightOnly(block_size=16, symmetric=True, min_weights=SMALL),
    WeightOnly(bits=4, block_size=16, min_weights=SMALL),
]
MIN_DB = {8: 25, 4: 8}


def signed(proto: onnx.ModelProto) -> onnx.ModelProto:
    signature_from_graph(proto).write(proto)
    return proto


def outputs(path: Path, inputs: np.ndarray) -> np.ndarray:
    session = open_session(path)
    result: np.ndarray = session.run(None, {session.get_inputs()[0].name: inputs})[0]
    return result


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_file_is_smaller_and_its_outputs_are_near_those_of_the_float_model(
    keep_model: KeepModel, recipe: WeightOnly
) -> None:
    out, model = keep_model(signed(transformer_models.encoder()))
    report = quantize(recipe, out, model=model)
    report.raise_if_blocked()
    path, tokens = out.path(report.artifacts["model"]), transformer_models.tokens()
    assert operators(path)["MatMulNBits"] == 12
    assert 1.5 < report.facts.size_ratio < 6
    expected = outputs(out.path(model), tokens)
    assert MIN_DB[recipe.bits] < sqnr_db(outputs(path, tokens), expected) < 70


def test_each_setting_is_in_the_file_and_in_the_name(tmp_path: Path) -> None:
    source = tmp_path / "encoder.onnx"
    onnx.save(transformer_models.encoder(), source)

    def attributes(recipe: WeightOnly) -> tuple[dict[str, int], int]:
        recipe.quantize(source, None, None, tmp_path / "q.onnx")
        node = next(n for n in onnx.load(tmp_path / "q.onnx").graph.node if n.op_type == "MatMulNBits")
        return {a.name: a.i for a in node.attribute}, len(node.input)

    usual, inputs = attributes(RECIPES[0])
    assert (usual["bits"], usual["block_size"], usual["accuracy_level"], inputs) == (8, 32, 4, 4)
    other, inputs = attributes(RECIPES[3].replace(block_size=64))
    assert (other["bits"], other["block_size"], other["accuracy_level"], inputs) == (4, 64, 1, 3)
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)
    assert [WeightOnly().name, WeightOnly(bits=4).name] == ["weight-only-8bit", "weight-only-4bit"]
    assert RECIPES[3].name == "weight-only-4bit-f32-symmetric-from1024"


@pytest.mark.parametrize("recipe", [RECIPES[0], RECIPES[1], DynamicInt8(op_types="matmul")], ids=lambda r: r.name)
def test_fused_model_is_quantized_with_its_attention_kept(keep_model: KeepModel, recipe: QuantizeConfig) -> None:
    out, model = keep_model(signed(TransformerFusions().transform(transformer_models.encoder())))
    report = quantize(recipe, out, model=model)
    report.raise_if_blocked()
    path, tokens = out.path(report.artifacts["model"]), transformer_models.tokens()
    found = operators(path)
    assert (found["MultiHeadAttention"], found["SkipLayerNormalization"]) == (2, 4)
    assert found["MatMulNBits"] + found["MatMulInteger"] >= 12
    plain = out.folder / "plain.onnx"
    onnx.save(transformer_models.encoder(), plain)
    assert sqnr_db(outputs(path, tokens), outputs(plain, tokens)) > 8


def test_products_that_stay_in_float_are_named_with_the_reason(keep_model: KeepModel) -> None:
    out, model = keep_model(signed(transformer_models.encoder(1)))
    left_out = quantize(WeightOnly(min_weights=2000), out, model=model).facts.left_out
    assert set(left_out) == {"scores0", "mix0", "query0", "key0", "value0", "output0", "head"}
    assert left_out["query0"] == "it has 1,024 weights; min_weights is 2,000"
    assert left_out["scores0"] == "both inputs are computed, so there are no weights to store"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("m (float[n,8] x) => (float[n,4] y) <float[8,4] w> { y = MatMul(x, w) }", "MatMul; it has 32 weights; min"),
        ("m (float[n,3,8,8] x) => (float[n,4,6,6] y) <float[4,3,3,3] w> { y = Conv(x, w) }", "among Conv"),
        ("m (float[n,8,8] x) => (float[n,8,8] y) { y = MatMul(x, x) }", "MatMul; both inputs are computed"),
    ],
)
def test_model_without_a_large_product_has_nothing_to_gain_for_one_reason(
    keep_model: KeepModel, text: str, reason: str
) -> None:
    out, model = keep_model(signed(onnx_text.model(text)))
    assert reason in quantize(WeightOnly(), out, model=model).facts.nothing_to_gain


def test_weights_that_two_products_share_are_quantized_right(tmp_path: Path) -> None:
    proto = onnx_text.model("""
        shared (float[n,64] x) => (float[n,64] y) <float[64,64] w, float[64,64] t>
        { a = MatMul(x, w) b = MatMul(a, w) c = Gemm<transB = 1>(b, t) y = Gemm<transB = 1>(c, t) }
    """)
    for tensor in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor) / 8
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(proto, tmp_path / "shared.onnx")
    WeightOnly().quantize(tmp_path / "shared.onnx", None, None, tmp_path / "q.onnx")
    DynamicInt8().quantize(tmp_path / "shared.onnx", None, None, tmp_path / "d.onnx")
    onnx.checker.check_model(tmp_path / "q.onnx")
    x = np.random.default_rng(3).standard_normal((16, 64)).astype(np.float32)
    expected = outputs(tmp_path / "shared.onnx", x)
    assert operators(tmp_path / "q.onnx")["MatMulNBits"] == 4
    assert sqnr_db(outputs(tmp_path / "q.onnx", x), expected) > 20
    assert sqnr_db(outputs(tmp_path / "d.onnx", x), expected) > 8


def test_auto_offers_8_and_4_bits_only_where_there_is_attention() -> None:
    processor = Processor("x86_64", frozenset({"avx2", "avx512f", "avx512_vnni"}))

    def names(operators: Operators) -> list[str]:
        return [r.name for r in recommended_recipes(processor, operators) if r.kind == "weight-only"]

    assert names("attention") == ["weight-only-8bit", "weight-only-4bit"]
    assert names("convolutions") == names("matrices") == names("unknown") == []


def test_quantizer_leaves_logging_as_it_is(tmp_path: Path) -> None:
    onnx.save(transformer_models.encoder(1), tmp_path / "encoder.onnx")
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    RECIPES[0].quantize(tmp_path / "encoder.onnx", None, None, tmp_path / "q.onnx")
    assert (root.level, list(root.handlers)) == before


ON_HASWELL = """
import sys, numpy as np, onnxruntime
x = np.load(sys.argv[1])
for model in sys.argv[3:]:
    y = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"tokens": x})[0]
    np.save(f"{sys.argv[2]}-{model[-6]}.npy", y)
"""


@pytest.mark.nightly
def test_outputs_are_those_of_this_processor_on_one_without_vnni(tmp_path: Path) -> None:
    source, tokens = tmp_path / "encoder.onnx", transformer_models.tokens()
    onnx.save(transformer_models.encoder(), source)
    np.save(tmp_path / "x.npy", tokens)
    paths = {bits: tmp_path / f"{bits}.onnx" for bits in (4, 8)}
    for recipe in RECIPES[:2]:
        recipe.quantize(source, None, None, paths[recipe.bits])
    on_haswell(ON_HASWELL, tmp_path / "x.npy", tmp_path / "there", *paths.values())
    for bits, path in paths.items():
        there = np.load(tmp_path / f"there-{bits}.npy")
        assert sqnr_db(there, outputs(path, tokens)) > 40
