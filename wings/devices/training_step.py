"""A bundle's classifier split at its last layer, and the training step of that layer as ordinary ONNX operators."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser

from gauntlet.bundle.bundle import CONTRACT, Bundle
from gauntlet.bundle.delivery import made_complete
from gauntlet.bundle.loading import differences
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.onnx_model.model_file import read_model
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from gauntlet.runtime.subgraph import intermediate_values, needed_for, producers
from wings.devices.deliveries import require_portable

ASSETS = Path(__file__).with_name("trainable")
FEATURES, STEP, PREDICT = "features.onnx", "training_step.onnx", "predict.onnx"
PASSED_THROUGH = ("Identity", "QuantizeLinear", "DequantizeLinear", "Softmax")
HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
STEP_TEXT = """{header}
training_step (float[n, {features}] features, int64[n] labels, float[{classes}, {features}] weight,
               float[{classes}] bias, float learning_rate)
  => (float loss, float[{classes}, {features}] new_weight, float[{classes}] new_bias)
<int64[{classes}] classes = {{{ids}}}, int64[1] samples = {{0}}, int64[1] columns = {{1}}>
{{
  scores = Gemm <transB = 1> (features, weight, bias)
  log_shares = LogSoftmax <axis = 1> (scores)
  label_column = Unsqueeze (labels, columns)
  is_label = Equal (label_column, classes)
  targets = Cast <to = 1> (is_label)
  is_known = ReduceSum (targets, columns)
  shape = Shape (labels)
  size = Cast <to = 1> (shape)
  count = Squeeze (size)
  of_target = Mul (targets, log_shares)
  total = ReduceSum <keepdims = 0> (of_target)
  mean = Div (total, count)
  loss = Neg (mean)
  shares = Exp (log_shares)
  known_shares = Mul (shares, is_known)
  off_by = Sub (known_shares, targets)
  gradient = Div (off_by, count)
  weight_gradient = Gemm <transA = 1> (gradient, features)
  bias_gradient = ReduceSum <keepdims = 0> (gradient, samples)
  weight_change = Mul (learning_rate, weight_gradient)
  bias_change = Mul (learning_rate, bias_gradient)
  new_weight = Sub (weight, weight_change)
  new_bias = Sub (bias, bias_change)
}}"""
PREDICT_TEXT = """{header}
predict (float[n, {features}] features, float[{classes}, {features}] weight, float[{classes}] bias)
  => (float[n, {classes}] scores)
{{ {body} }}"""
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LastLayer:
    """`features @ weight.T + bias`, perhaps with a softmax behind it."""

    features: str
    """Tensor of the model, shape (n, features)."""
    weight: Floats
    """Shape (classes, features)."""
    bias: Floats
    softmax: bool

    def sizes(self) -> dict[str, int]:
        """Return the number of classes and of features."""
        return {"classes": self.weight.shape[0], "features": self.weight.shape[1]}


def write_trainable(bundle: Bundle, target: Path) -> LastLayer:
    """Write a folder with the model before its last layer, that layer, and its training step; return the layer.

    The step is one of stochastic gradient descent on the mean cross-entropy. In a quantized model, the layer before is
    as it was, and the last one learns in float32.

    Raises:
        ConfigError: when the folder exists, or the model is no classifier that ends with a linear layer.
        StageError: when the parts together do not give the golden outputs.
    """
    case, signature = bundle.golden(), bundle.contract.signature
    require_portable(bundle, case, "--trainable")
    if signature.task != "classification":
        raise ConfigError(f"--trainable: the model's task is {signature.task}; only classification can be trained")
    proto = read_model(bundle.model)
    output = signature.primary_output or signature.outputs[0].name
    layer = find_last_layer(proto, output, batched_inference(open_session(bundle.model), case.inputs).feed(0, 1))
    with made_complete(target, "--trainable") as folder:
        folder.mkdir()
        onnx.save(_part_before(proto, layer.features, "features"), folder / FEATURES)
        onnx.save(training_step(**layer.sizes()), folder / STEP)
        onnx.save(_predict(layer), folder / PREDICT)
        layer.weight.tofile(folder / "weight.bin")
        layer.bias.tofile(folder / "bias.bin")
        (folder / "trainable.json").write_text(json.dumps(layer.sizes()) + "\n")
        shutil.copyfile(bundle.folder / CONTRACT, folder / CONTRACT)
        shutil.copyfile(ASSETS / "example.py", folder / "example.py")
        _require_golden(bundle, layer, {output: case.outputs[output]}, folder)
    return layer


def training_step(classes: int, features: int) -> onnx.ModelProto:
    """Return the step as a model.

    Inputs: `features` (n, features), `labels` (n,) int64, `weight`, `bias`, and the scalar `learning_rate`. Outputs:
    `loss` before the step, `new_weight` and `new_bias`. With P the softmax of the scores and T the labels as one-hot
    rows, the gradient of the mean cross-entropy by the scores is (P - T) / n (Bishop, Pattern Recognition and Machine
    Learning, 2006, section 4.3.4). A label outside the classes adds nothing to the loss or to the gradient.
    """
    ids = ", ".join(map(str, range(classes)))
    return onnx.parser.parse_model(STEP_TEXT.format(header=HEADER, classes=classes, features=features, ids=ids))


def find_last_layer(proto: onnx.ModelProto, output: str, feed: NamedArrays) -> LastLayer:
    """Return the layer that computes an output; `feed` is one call of the model.

    Raises:
        ConfigError: when it is not a Gemm or MatMul with constant weights on features of shape (n, features).
    """
    made_by, name, softmax = producers(proto.graph), output, False
    while (node := made_by.get(name)) is not None and node.op_type in PASSED_THROUGH:
        softmax = softmax or node.op_type == "Softmax"
        name = node.input[0]
    bias_name = ""
    if node is not None and node.op_type == "Add":
        products = [i for i in node.input if i in made_by and made_by[i].op_type == "MatMul"]
        bias_name = next((i for i in node.input if i not in products), "")
        node = made_by[products[0]] if products else node
    if node is None or node.op_type not in ("Gemm", "MatMul"):
        kind = node.op_type if node is not None else "none"
        raise ConfigError(f"--trainable: the last layer is {kind}; expected Gemm or MatMul, with a constant weight")
    if node.op_type == "Gemm" and len(node.input) > 2:
        bias_name = node.input[2]
    weights = [node.input[1], *([bias_name] if bias_name else [])]
    if depends := needed_for(proto.graph, weights).intersection(value.name for value in proto.graph.input):
        raise ConfigError(f"--trainable: the weight of the last layer depends on the input {min(depends)!r}")
    return _layer(node, intermediate_values(proto, [*weights, node.input[0]], feed), bias_name, softmax)


def _layer(node: onnx.NodeProto, values: NamedArrays, bias_name: str, softmax: bool) -> LastLayer:
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    taken, stored = values[node.input[0]], values[node.input[1]]
    if options.get("transA") or taken.ndim != 2 or stored.ndim != 2 or stored.dtype != np.float32:
        problem = f"takes features of shape {taken.shape} with weights of shape {stored.shape}, {stored.dtype}"
        raise ConfigError(f"--trainable: the last layer {problem}; expected two axes each, and float32")
    weight = (stored if options.get("transB") else stored.T).astype(np.float32) * options.get("alpha", 1.0)
    classes = len(weight)
    bias = np.zeros(classes, np.float32)
    if bias_name:
        bias = np.broadcast_to(np.squeeze(values[bias_name]), classes).astype(np.float32) * options.get("beta", 1.0)
    weight, bias = np.ascontiguousarray(weight, np.float32), np.ascontiguousarray(bias, np.float32)
    return LastLayer(node.input[0], weight, bias, softmax)


def _part_before(proto: onnx.ModelProto, name: str, output: str) -> onnx.ModelProto:
    """Return the part of a model that computes a tensor of floats, as its only output, which is named `output`."""
    needed = needed_for(proto.graph, [name])
    part = onnx.ModelProto()
    part.CopyFrom(proto)
    for field in ("node", "initializer", "output", "value_info"):
        part.graph.ClearField(field)
    part.graph.node.extend(node for node in proto.graph.node if needed & {*node.output})
    part.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name in needed)
    while output in needed:
        output += "_"
    part.graph.node.append(onnx.helper.make_node("Identity", [name], [output]))
    part.graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, ["n", None]))
    return part


def _predict(layer: LastLayer) -> onnx.ModelProto:
    body = "scores = Gemm <transB = 1> (features, weight, bias)"
    if layer.softmax:
        body = body.replace("scores =", "raw =") + " scores = Softmax <axis = 1> (raw)"
    return onnx.parser.parse_model(PREDICT_TEXT.format(header=HEADER, body=body, **layer.sizes()))


def _require_golden(bundle: Bundle, layer: LastLayer, golden: NamedArrays, folder: Path) -> None:
    """Raise `StageError` unless the two parts give the golden outputs."""
    [features] = batched_inference(open_session(folder / FEATURES), bundle.golden().inputs).run(1).values()
    feed = {"features": features, "weight": layer.weight, "bias": layer.bias}
    [name] = golden
    [difference] = differences({name: open_session(folder / PREDICT).run(None, feed)[0]}, golden)
    limit = bundle.contract.golden_tolerance
    if not difference.max_rel_error <= limit:
        problem = f"output {name!r} of the parts differs by {difference.max_rel_error:.3g}, allowed {limit:.3g}"
        raise StageError(f"--trainable: {problem}")
