"""Models of kinds that frameworks' zoos lack, written as graphs; the outputs are ONNX Runtime's for the file itself.

Ten are brought again with labels that are permuted, constant or missing: the run must say what it cannot judge.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gauntlet.core.arrays import Array, NamedArrays
from zoo_models.zoo_model import ZooModel, run_file, with_samples

LENGTH, HIGH = 8, 12
"""Of open axes, and below which whole numbers are drawn."""
TEXTS = """
recommender: (int64[N] user, int64[N] item) => (float[N] y) <float[12,6] u, float[12,6] v> { a = Gather (u, user) b =
  Gather (v, item) c = Mul (a, b) one = Constant <value = int64[1] {1}> () s = ReduceSum <keepdims = 0> (c, one) y =
  Sigmoid (s) }

two_towers: (float[N,6] query, float[N,9] item) => (float[N,1] y) <float[6,4] u, float[9,4] v> { a = MatMul (query, u)
  b = MatMul (item, v) p = LpNormalization (a) q = LpNormalization (b) c = Mul (p, q) one = Constant <value = int64[1]
  {1}> () y = ReduceSum (c, one) }

wide_and_deep: (int64[N,2] ids, float[N,4] x) => (float[N,1] y) <float[12,3] e, float[10,1] w> { g = Gather (e, ids) f
  = Flatten (g) c = Concat <axis = 1> (f, x) m = MatMul (c, w) y = Sigmoid (m) }

yolo: (float[N,3,16,16] x) => (float[N,8,16] y) <float[8,3,4,4] w, int64[3] s = {0,8,-1}, int64[2] p = {4,4}, float
  side = {16}, float two = {2}> { c = Conv <kernel_shape = [4,4], strides = [4,4]> (x, w) r = Reshape (c, s) d = Mul
  (r, two) b, l = Split <axis = 1> (d, p) u = Sigmoid (b) e = Mul (u, side) m = Sub (l, two) k = Sigmoid (m) y =
  Concat <axis = 1> (e, k) }

yolo_nms: (float[1,3,16,16] x) => (float[k,4] boxes, float[k] scores, int64[k] labels) <float[8,3,4,4] w, int64[3] s =
  {0,8,-1}, int64[2] p = {4,4}, int64[2] h = {2,2}, int64[1] most = {5}, float[1] iou = {0.5}, float[1] least = {0.55},
  float side = {16}, float half = {0.5}, int64 one = {1}, int64 two = {2}, int64[1] zero = {0}> { c = Conv
  <kernel_shape = [4,4], strides = [4,4]> (x, w) r = Reshape (c, s) b, l = Split <axis = 1> (r, p) u = Sigmoid (b) e =
  Mul (u, side) f, g = Split <axis = 1> (e, h) q = Mul (g, half) low = Sub (f, q) high = Add (f, q) d = Concat <axis =
  1> (low, high) k = Sigmoid (l) t = Transpose <perm = [0,2,1]> (d) n = NonMaxSuppression (t, k, most, iou, least)
  labels = Gather <axis = 1> (n, one) i = Gather <axis = 1> (n, two) z = Squeeze (t, zero) boxes = Gather (z, i) scores
  = GatherND (k, n) }

detr: (float[N,3,16,16] x) => (float[N,5,4] logits, float[N,5,4] boxes) <float[8,3,4,4] w, int64[3] s = {0,8,-1},
  float[5,8] q, float[8,4] a, float[8,4] b, float[4] rare = {0,0,0,1}, float four = {4}> { c = Conv <kernel_shape =
  [4,4], strides = [4,4]> (x, w) k = Reshape (c, s) g = MatMul (q, k) f = Mul (g, four) p = Softmax (f) t = Transpose
  <perm = [0,2,1]> (k) o = MatMul (p, t) e = MatMul (o, a) logits = Add (e, rare) d = MatMul (o, b) boxes = Sigmoid
  (d) }

gpt: (int64[N,T] tokens) => (float[N,T,12] logits) <float[12,8] e, float[8,8] q, float[8,8] k, float[8,12] h> { x =
  Gather (e, tokens) a = MatMul (x, q) b = MatMul (x, k) t = Transpose <perm = [0,2,1]> (b) s = MatMul (a, t) shape =
  Shape (s) w = Constant <value = float {-9.0}> () m = Expand (w, shape) one = Constant <value = int64 {1}> () u =
  Trilu <upper = 1> (m, one) z = Add (s, u) p = Softmax (z) c = MatMul (p, x) logits = MatMul (c, h) }

kv_cache: (float[N,1,8] x, float[N,past,8] cache) => (float[N,1,4] y, float[N,all,8] present) <float[8,8] w,
  float[8,4] v> { k = MatMul (x, w) present = Concat <axis = 1> (cache, k) t = Transpose <perm = [0,2,1]> (present) s
  = MatMul (x, t) p = Softmax (s) c = MatMul (p, present) y = MatMul (c, v) }

streaming_audio: (float[N,16] frame, float[N,6] h) => (float[N,3] y, float[N,6] h_out) <float[16,6] w, float[6,6] u,
  float[6,3] v> { a = MatMul (frame, w) b = MatMul (h, u) c = Add (a, b) h_out = Tanh (c) y = MatMul (h_out, v) }

graph_network: (float[N,6,4] nodes, float[N,6,6] edges) => (float[N,3] y) <float[4,5] w, float[5,3] v> { a = Softmax
  (edges) m = MatMul (a, nodes) h = MatMul (m, w) r = Relu (h) b = MatMul (a, r) c = MatMul (b, v) y = ReduceMean
  <axes = [1], keepdims = 0> (c) }

super_resolution: (float[N,3,h,w] x) => (float[N,3,H,W] y) <float[12,3,3,3] k> { c = Conv <kernel_shape = [3,3], pads
  = [1,1,1,1]> (x, k) y = DepthToSpace <blocksize = 2> (c) }

volumes: (float[N,1,6,6,6] x) => (float[N,3] y) <float[4,1,3,3,3] k, float[4,3] w> { c = Conv (x, k) r = Relu (c) g =
  GlobalAveragePool (r) f = Flatten (g) y = MatMul (f, w) }

found_places: (float[1,10] x) => (int64[k,2] y) { z = Constant <value = float {0.3}> () g = Greater (x, z) n = NonZero
  (g) y = Transpose (n) }

line_reader: (float[N,1,8,24] x) => (float[N,24,6] y) <float[6,1,3,3] k> { c = Conv <kernel_shape = [3,3], pads =
  [1,1,1,1]> (x, k) m = ReduceMean <axes = [2], keepdims = 0> (c) t = Transpose <perm = [0,2,1]> (m) y = LogSoftmax
  (t) }

speech: (float[N,8,T] x) => (float[N,4] y) <float[6,8,3] k, float[6,4] w> { c = Conv <pads = [1,1]> (x, k) r = Relu
  (c) m = ReduceMax <axes = [2], keepdims = 0> (r) y = MatMul (m, w) }

embedding: (float[N,20] x) => (float[N,16] embedding) <float[20,16] w> { m = MatMul (x, w) embedding = LpNormalization
  (m) }

auto_encoder: (float[N,20] x) => (float[N,20] y) <float[20,4] w, float[4,20] v> { a = MatMul (x, w) b = Relu (a) y =
  MatMul (b, v) }

class_map: (float[N,3,12,12] x) => (int64[N,12,12] y) <float[4,3,3,3] k> { c = Conv <kernel_shape = [3,3], pads =
  [1,1,1,1]> (x, k) y = ArgMax <axis = 1, keepdims = 0> (c) }

forecaster: (float[N,T,3] x) => (float[N,4] y) <float[1,18,3] w, float[1,18,6] r, float[6,4] v> { t = Transpose <perm
  = [1,0,2]> (x) all, last = GRU <hidden_size = 6> (t, w, r) zero = Constant <value = int64[1] {0}> () s = Squeeze
  (last, zero) y = MatMul (s, v) }

experts: (float[N,8] x) => (float[N,5] y) <float[8,4] g, float[4,8,5] e> { a = MatMul (x, g) two = Constant <value =
  int64[1] {2}> () v, i = TopK (a, two) p = Softmax (v) w = Gather (e, i) ax = Constant <value = int64[2] {1,2}> () u
  = Unsqueeze (x, ax) m = MatMul (u, w) ends = Constant <value = int64[2] {2,3}> () q = Unsqueeze (p, ends) k = Mul
  (m, q) y = ReduceSum <keepdims = 0> (k, ax) }

style: (float[N,3,h,w] x) => (float[N,3,h,w] y) <float[3,3,3,3] k, float[3] s, float[3] b> { c = Conv <kernel_shape =
  [3,3], pads = [1,1,1,1]> (x, k) n = InstanceNormalization (c, s, b) y = Tanh (n) }

key_points: (float[N,3,12,12] x) => (float[N,5,12,12] y) <float[5,3,3,3] k> { y = Conv <kernel_shape = [3,3], pads =
  [1,1,1,1]> (x, k) }

depth: (float[N,3,12,12] x) => (float[N,1,12,12] y) <float[1,3,3,3] k> { c = Conv <kernel_shape = [3,3], pads =
  [1,1,1,1]> (x, k) y = Softplus (c) }

translator: (int64[N,S] source, int64[N,T] so_far) => (float[N,T,12] y) <float[12,8] e, float[8,12] h> { a = Gather
  (e, source) b = Gather (e, so_far) t = Transpose <perm = [0,2,1]> (a) s = MatMul (b, t) p = Softmax (s) c = MatMul
  (p, a) y = MatMul (c, h) }

denoiser: (float[N,3,8,8] x, int64[N] step) => (float[N,3,8,8] y) <float[12,3] e, float[3,3,3,3] k> { t = Gather (e,
  step) ax = Constant <value = int64[2] {2,3}> () u = Unsqueeze (t, ax) a = Add (x, u) y = Conv <kernel_shape = [3,3],
  pads = [1,1,1,1]> (a, k) }

sentiment: (int64[N,T] tokens) => (float[N,3] y) <float[12,8] e, float[8,3] w> { x = Gather (e, tokens) m = ReduceMean
  <axes = [1], keepdims = 0> (x) l = MatMul (m, w) y = Softmax (l) }

best_five: (float[N,20] x) => (float[N,5] values, int64[N,5] places) { five = Constant <value = int64[1] {5}> ()
  values, places = TopK (x, five) }

answer_span: (int64[N,T] tokens) => (float[N,T] start, float[N,T] end) <float[12,8] e, float[8,2] w> { x = Gather (e,
  tokens) l = MatMul (x, w) a, b = Split <axis = 2> (l) two = Constant <value = int64[1] {2}> () start = Squeeze (a,
  two) end = Squeeze (b, two) }

tagger: (int64[N,T] tokens) => (int64[N,T] tags) <float[12,8] e, float[8,4] w> { x = Gather (e, tokens) l = MatMul (x,
  w) tags = ArgMax <axis = 2, keepdims = 0> (l) }

point_cloud: (float[N,P,3] x) => (float[N,4] y) <float[3,8] w, float[8,4] v> { a = MatMul (x, w) r = Relu (a) m =
  ReduceMax <axes = [1], keepdims = 0> (r) y = MatMul (m, v) }

anomaly: (float[N,12] x) => (float[N] y) <float[12,3] w, float[3,12] v> { a = MatMul (x, w) b = MatMul (a, v) d = Sub
  (x, b) s = Mul (d, d) y = ReduceMean <axes = [1], keepdims = 0> (s) }

categories: (string[N] x) => (float[N,3] y) <float[4,3] w> { i = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b",
  "c"], values_int64s = [0, 1, 2], default_int64 = 3> (x) y = Gather (w, i) }
"""
KINDS = {name: graph for name, _, graph in (block.partition(": ") for block in TEXTS.strip().split("\n\n"))}
"""By name: the graph."""
OWN: dict[str, str] = {
    **dict.fromkeys(("yolo", "yolo_nms", "detr"), "detection"),
    **dict.fromkeys(("speech", "sentiment"), "classification"),
    "class_map": "segmentation",
    "embedding": "embedding",
    "line_reader": "text",
    "tagger": "tagging",
}
"""The problem that each must be judged by; all others by their values, as arrays."""
NAMED = ("line_reader", "key_points", "forecaster", "tagger")
"""Whose problem the user names: few characters, maps like masks, values whose sum is constant, whole numbers."""


def written(text: str) -> onnx.ModelProto:
    """Return a model; declared weights without values are random, and the same at every run."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]> g {text}')
    computed = {name for node in proto.graph.node for name in node.output}
    for value in [value for value in proto.graph.value_info if value.name not in computed]:
        shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        array = np.random.default_rng(shape).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), value.name))
        proto.graph.value_info.remove(value)
    return proto


def drawn(proto: onnx.ModelProto, count: int) -> NamedArrays:
    """Return random samples for every input; open axes have the length `LENGTH`."""
    rng, made = np.random.default_rng(1), {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = (count, *(axis.dim_value or LENGTH for axis in kind.shape.dim[1:]))
        if kind.elem_type == onnx.TensorProto.FLOAT:
            made[value.name] = rng.standard_normal(shape).astype(np.float32)
        elif kind.elem_type == onnx.TensorProto.STRING:
            made[value.name] = rng.choice(["a", "b", "c", "d"], shape)
        else:
            made[value.name] = rng.integers(0, HIGH, shape).astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return made


def _kind(name: str, folder: Path, spoil: str = "") -> ZooModel:
    """Write a model; with spoiled labels, the run must say so, or refuse them."""
    proto, path = written(KINDS[name]), folder / "model.onnx"
    onnx.save(proto, path)
    task = OWN.get(name, "arrays")
    words = ("--task", task) if name in NAMED and not spoil else ()
    made = with_samples(path, partial(drawn, proto), partial(run_file, path), words=words)
    if not spoil:
        return replace(made, task=task)
    classes = run_file(path, made.seen)[0].argmax(axis=1).astype(np.int64)
    made.seen["labels"] = LABELS[spoil](classes)
    return (
        replace(made, refusal="are out of range") if spoil == "missing" else replace(made, says="evaluate.labels_fit")
    )


def _permuted(classes: Array) -> Array:
    return np.random.default_rng(0).permutation(classes)


def _constant(classes: Array) -> Array:
    return np.zeros_like(classes)


def _missing(classes: Array) -> Array:
    return np.full_like(classes, -1)


LABELS: dict[str, Callable[[Array], Array]] = {"permuted": _permuted, "constant": _constant, "missing": _missing}
"""What becomes of the model's own classes."""
SPOILED = {
    "permuted": ("sentiment", "graph_network", "volumes", "speech"),
    "constant": ("sentiment", "point_cloud", "forecaster"),
    "missing": ("sentiment", "speech", "wide_and_deep"),
}


def other_kinds() -> dict[str, Callable[[Path], ZooModel]]:
    """Return the models by name, and ten with labels that say nothing."""
    made: dict[str, Callable[[Path], ZooModel]] = {f"kinds_{name}": partial(_kind, name) for name in KINDS}
    spoiled = ((name, how) for how, names in SPOILED.items() for name in names)
    return made | {f"kinds_{name}_{how}": partial(_kind, name, spoil=how) for name, how in spoiled}
