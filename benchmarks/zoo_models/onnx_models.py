"""ONNX files as exporters of the last seven years wrote them; the outputs are ONNX Runtime's for the file itself."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from calibration_feeds import Feeds
from onnx import helper, numpy_helper
from onnxruntime import quantization

from gauntlet.core.arrays import NamedArrays
from zoo_models.zoo_model import SAMPLES, ZooModel, floats, run_file, with_samples

RNG = np.random.default_rng(0)
WEIGHTS = {"w": (8, 3, 3, 3), "k": (4, 8), "l": (4,), "square": (4, 4), "table": (64, 4), "line": (8, 1)}
WEIGHTS |= dict.fromkeys(("b", "scale", "bias", "mean", "var"), (8,))
GEMM = "y = Gemm <transB = 1> (x, k, l)"
IMAGES = """(float[N,3,12,12] x) => (float[N,4] y) {
   c = Conv <pads = [1,1,1,1]> (x, w, b)  n = BatchNormalization (c, scale, bias, mean, var)  r = Relu (n)
   m = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)  g = GlobalAveragePool (m)  f = Flatten (g)
   y = Gemm <transB = 1> (f, k, l) }"""
TEXTS: dict[str, tuple[str, str]] = {
    "if": (
        """(float[N,4] x) => (float[N,4] y) {
        n = Size (x)  zero = Constant <value = int64 {0}> ()  big = Greater (n, zero)
        y = If (big) <then_branch = a () => (float[N,4] p) { p = Relu (x) },
                      else_branch = b () => (float[N,4] q) { q = Neg (x) }> }""",
        "",
    ),
    "loop": (
        """(float[N,4] x) => (float[N,4] y) {
        three = Constant <value = int64 {3}> ()  yes = Constant <value = bool {1}> ()
        y = Loop (three, yes, x) <body = a (int64 i, bool c, float[N,4] s) => (bool d, float[N,4] t) {
          d = Identity (c)  t = MatMul (s, square) }> }""",
        "",
    ),
    "scan": (
        """(float[N,5,4] x) => (float[N,4] y) {
        start = ReduceMax <axes = [1], keepdims = 0> (x)
        y, all = Scan (start, x) <num_scan_inputs = 1, scan_input_axes = [1],
          body = a (float[N,4] s, float[N,4] e) => (float[N,4] t, float[N,4] o) { t = Add (s, e)  o = Tanh (t) }> }""",
        "",
    ),
    "unnamed_batch": (f"(float[?,8] x) => (float[?,4] y) {{ {GEMM} }}", ""),
    "batch_of_one": (f"(float[1,8] x) => (float[1,4] y) {{ {GEMM} }}", ""),
    "double": ("(double[N,4] x) => (double[N,4] y) { y = Exp (x) }", ""),
    "half": ("(float16[N,4] x) => (float16[N,4] y) { y = Relu (x) }", ""),
    "whole": ("(int64[N,4] x) => (int64[N,4] y) { y = Add (x, x) }", ""),
    "unused": (f"(float[N,8] x) => (float[N,4] y) {{ u = Relu (x)  {GEMM} }}", ""),
    "two_outputs": (f"(float[N,8] x) => (float[N,4] y, float[N,4] z) {{ {GEMM}  z = Softmax (y) }}", ""),
    "click": ("(float[N,8] x) => (float[N,1] y) { z = MatMul (x, line)  y = Sigmoid (z) }", ""),
    "unknown_operator": ("(float[N,4] x) => (float[N,4] y) { y = my.domain.Gate (x) }", "Gate"),
    "sequence": ("(float[N,4] x) => (seq(float[N,4]) y) { y = SequenceConstruct (x, x) }", "no output is a tensor"),
    "weights_only": (
        """(float[N,4] x) => (float[N,4] y) <int8[4,4] q = {1,-9,8,3,0,5,77,-4,9,2,-6,1,3,-3,12,6}, float s = {0.1}> {
        d = DequantizeLinear (q, s)  y = MatMul (x, d) }""",
        "",
    ),
}
"""By name: the graph, and part of the reason for which it is refused."""
INT8 = {"activation_type": quantization.QuantType.QInt8, "weight_type": quantization.QuantType.QInt8}
STATIC: dict[str, dict[str, Any]] = {
    "qdq": {},
    "qdq_int8": INT8 | {"extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}},
    "qdq_channels": INT8 | {"per_channel": True},
    "qoperator": {"quant_format": quantization.QuantFormat.QOperator},
}


def network(text: str = IMAGES, opset: int = 17) -> Any:
    """Return a model with random weights; they are inputs, too, where the file's version is 3."""
    imports = f'["" : {opset}{", ".join(["", chr(34) + "my.domain" + chr(34) + " : 1"]) if "my." in text else ""}]'
    proto = onnx.parser.parse_model(f"<ir_version: 8, opset_import: {imports}> g {text}")
    graph = proto.graph
    for name, size in WEIGHTS.items():
        value = np.abs(RNG.standard_normal(size)).astype(np.float32) / 2 - (0 if name == "var" else 0.25)
        if f'input: "{name}"' in str(graph):
            graph.initializer.append(numpy_helper.from_array(value, name))
    proto.ir_version = helper.find_min_ir_version_for(proto.opset_import, True)
    if proto.ir_version < 4:
        graph.input.extend(helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in graph.initializer)
    return proto


def _file(folder: Path, proto: Any = None, refusal: str = "", **saving: Any) -> ZooModel:
    """Save a model, if there is one, and return the file with samples."""
    path = folder / "model.onnx"
    if proto is not None:
        onnx.save(proto, path, **saving)
    kind = onnx.load(path, load_external_data=False).graph.input[0].type.tensor_type
    shape = [axis.dim_value for axis in kind.shape.dim][1:]
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    draw = lambda count: {"x": (4 * floats(*shape)(count)["x"]).astype(dtype)}  # noqa: E731

    def outputs(samples: NamedArrays) -> list[Any]:
        if refusal:
            return []
        return run_file(path, samples)

    made = with_samples(path, draw, outputs, words=())
    return ZooModel(path, made.seen, made.unseen, made.expected, (), refusal)


def _text(name: str, folder: Path) -> ZooModel:
    text, refusal = TEXTS[name]
    made = _file(folder, network(text, 12 if name == "scan" else 17), refusal)
    if name == "click":
        session = ort.InferenceSession(made.source)
        chance = session.run(None, {"x": made.seen["x"]})[0][:, 0]
        made.seen["labels"] = (RNG.random(SAMPLES) < chance).astype(np.int64)
    return made


def _function(folder: Path) -> ZooModel:
    proto = network("(float[N,4] x) => (float[N,4] y) { y = my.domain.Twice (x) }")
    body = [helper.make_node("Add", ["a", "a"], ["s"]), helper.make_node("Tanh", ["s"], ["b"])]
    imports = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("my.domain", "Twice", ["a"], ["b"], body, imports))
    return _file(folder, proto)


def _ml(folder: Path, *, maps: bool) -> ZooModel:
    out = "seq(map(int64, float)) z" if maps else "float[N,3] z"
    last = "z = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1, 2]> (p)" if maps else "z = Identity (p)"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 15, "ai.onnx.ml" : 3]> g (float[N,4] x) => (int64[N] y, {out}) {{'
        "s = ai.onnx.ml.Scaler <offset = [1.0, 0.0, 0.0, 2.0], scale = [1.0, 2.0, 1.0, 0.5]> (x)"
        " y, p = ai.onnx.ml.LinearClassifier <classlabels_ints = [0, 1, 2], intercepts = [0.1, 0.2, 0.3],"
        " coefficients = [0.1, -0.2, 0.7, 0.3, -0.4, 0.3, 0.2, 0.1, 0.9, -0.3, 0.2, -0.1],"
        f' post_transform = "SOFTMAX"> (s) {last} }}'
    )
    return _file(folder, proto)


def _catboost(folder: Path) -> ZooModel:
    """Return trees as CatBoost exports them: IR 3, texts as classes, a ZipMap, and no standard operators."""
    proto = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["ai.onnx.ml" : 2]> g (float[N,4] x) => (string[N] y, seq(map(string, float)) z)'
        '{ y, p = ai.onnx.ml.TreeEnsembleClassifier <classlabels_strings = ["a", "b"], post_transform = "LOGISTIC",'
        " class_ids = [1, 1], class_nodeids = [1, 2], class_treeids = [0, 0], class_weights = [-1.0, 2.0],"
        " nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [2, 0, 0],"
        " nodes_values = [0.5, 0.0, 0.0], nodes_truenodeids = [2, 0, 0], nodes_falsenodeids = [1, 0, 0],"
        ' nodes_modes = ["BRANCH_GT", "LEAF", "LEAF"]> (x)'
        ' z = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b"]> (p) }'
    )
    made = _file(folder, proto)
    made.seen["labels"] = np.where(made.seen["x"][:, 2] > 1, "b", "a")
    return made


def _quantized(folder: Path, how: str) -> ZooModel:
    paths = folder / "float.onnx", folder / "model.onnx"
    onnx.save(network(), paths[0])
    if how == "dynamic":
        quantization.quantize_dynamic(*paths)
    else:
        images = np.split(floats(3, 12, 12)(32)["x"] * 4, 8)
        quantization.quantize_static(*paths, Feeds({"x": part} for part in images), **STATIC[how])
    return _file(folder)


def _four_bits(folder: Path) -> ZooModel:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    proto = network("(float[N,64] x) => (float[N,4] y) { y = MatMul (x, table) }", 21)
    quantizer = MatMulNBitsQuantizer(proto, block_size=32, is_symmetric=True)
    quantizer.process()
    return _file(folder, quantizer.model.model)


def _half(folder: Path) -> ZooModel:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return _file(folder, convert_float_to_float16(network(), keep_io_types=True))


def _damaged(folder: Path) -> ZooModel:
    made = _file(folder, network(), "not a readable ONNX model")
    made.source.write_bytes(made.source.read_bytes()[:300])
    return made


def files() -> dict[str, Callable[[Path], ZooModel]]:
    """Return the files by name."""
    odd = IMAGES.replace(" r ", ' "/r/0:ü" ').replace("(r)", '("/r/0:ü")')
    outside = {"save_as_external_data": True, "size_threshold": 0}
    made: dict[str, Callable[[Path], ZooModel]] = {
        "ml": partial(_ml, maps=False),
        "ml_maps": partial(_ml, maps=True),
        "catboost": _catboost,
        "function": _function,
        "external": lambda folder: _file(folder, network(), **outside),
        "external_each": lambda folder: _file(folder, network(), all_tensors_to_one_file=False, **outside),
        "odd_names": lambda folder: _file(folder, network(odd)),
        "four_bits": _four_bits,
        "half_inside": _half,
        "damaged": _damaged,
    }
    made |= {how: partial(_quantized, how=how) for how in (*STATIC, "dynamic")}
    made |= {
        f"opset_{n}": lambda folder, n=n: _file(folder, network(opset=n))
        for n in (*range(7, 14), *range(15, 27, 2), 26)
    }
    made |= {name: partial(_text, name) for name in TEXTS}
    return {f"onnx_{name}": function for name, function in made.items()}
