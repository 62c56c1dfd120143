"""Sequential bias correction: what rounding shifts the mean of a channel by is taken out of the layer's bias.

Layer by layer in the order of the graph, each on the outputs of the already corrected ones, in closed form: the
empirical correction of Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction", ICCV
2019, section 4.2, applied in sequence.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.errors import one_line
from gauntlet.core.ragged import comparable
from gauntlet.metrics.error_metrics import centered_sqnr_db
from gauntlet.metrics.output_noise import worst_noise_db
from gauntlet.onnx_model.model_file import bodies, is_large_file, read_model, write_model
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

log = logging.getLogger("gauntlet")

LAYERS = {"Conv", "ConvTranspose", "Gemm"}
"""They have a bias, and the channels of their outputs are on axis 1."""
ENOUGH_DB = 30.0
"""Outputs this near to those of the float model are left as they are: no gate would see a difference."""
MIN_GAIN_DB = 0.01
"""A smaller gain is the noise of these samples."""
BATCH = 4
"""Samples in one call, where the outputs of all layers fit into `MAX_BYTES`."""
MAX_BYTES, COPIES = 2_000_000_000, 5
"""For the activations of all samples: of each, about so many times the outputs of its largest layer, at once."""
INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class _Layer:
    place: int  # in the list of nodes
    output: str
    float_output: str
    bias: onnx.TensorProto  # floats, or int32
    scale: Array | None  # of an int32 bias


def correct_biases(quantized: Path, prepared: Path, samples: NamedArrays) -> float:
    """Correct the biases of a quantized model (QDQ) in its file, if outputs get nearer to those of the float model.

    There is nothing to do where outputs are near enough, no layer has a bias, the graph has control flow or external
    data, or the runtime cannot run its parts.

    Args:
        quantized: the model that is changed.
        prepared: the model with float weights that it was made from; nodes keep their names.
        samples: arrays of shape (n, ...) by input; half of them correct, the other half judge.

    Returns:
        What outputs of samples that it was not made from gain in signal to noise, in dB; 0 where the file is as it was.
    """
    if is_large_file(quantized) or is_large_file(prepared):
        return 0.0
    proto, source = read_model(quantized), read_model(prepared)
    has_bodies = any([*bodies(node)] for node in proto.graph.node)
    layers = [] if has_bodies else [*_layers(proto.graph, source.graph)]
    if not layers or len(next(iter(samples.values()))) < 2:
        return 0.0
    try:
        gain_db = _correct(proto, source, layers, samples)
    except Exception as error:  # the runtime's own exceptions share no public base
        log.debug("biases are not corrected: %s", one_line(error))
        return 0.0
    if not gain_db > MIN_GAIN_DB:
        return 0.0
    write_model(proto, quantized)
    return gain_db


def _correct(proto: onnx.ModelProto, source: onnx.ModelProto, layers: Sequence[_Layer], samples: NamedArrays) -> float:
    """Correct the biases with one half of the samples; return the gain on the other half."""
    made_from, judged = ({name: array[half::2] for name, array in samples.items()} for half in (0, 1))
    expected = _run(source, judged)
    before_db = _noise_db(_run(proto, judged), expected)
    if not before_db[0] < ENOUGH_DB:
        return 0.0
    calls, means = _channel_means(source, [layer.float_output for layer in layers], made_from)
    _change_biases(proto, layers, means, calls)
    gains_db = _noise_db(_run(proto, judged), expected) - before_db
    return 0.0 if (gains_db[1:] < 0).any() else float(gains_db[0])


def _noise_db(outputs: Sequence[Array], expected: Sequence[Array]) -> Floats:
    """Return the noise of the worst slice, and of each whole output: many faint slices may gain where it loses."""
    floats = [pair for pair in comparable(outputs, expected) if pair[1].dtype.kind == "f"]
    wholes = [min(centered_sqnr_db(*pair), ENOUGH_DB) for pair in floats]
    return np.array([worst_noise_db(outputs, expected), *wholes])


def _layers(graph: onnx.GraphProto, source: onnx.GraphProto) -> Iterator[_Layer]:
    """Yield the layers whose bias can be changed: stored, read by no other node, in floats or as int32 with a scale."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    readers = [name for node in graph.node for name in node.input]
    floats = {node.name: node.output[0] for node in source.node}
    for place, node in enumerate(graph.node):
        beta = next((attribute.f for attribute in node.attribute if attribute.name == "beta"), 1.0)
        if node.op_type not in LAYERS or node.name not in floats or len(node.input) < 3 or beta != 1.0:
            continue
        name, scale = node.input[2], None
        if name in makers and makers[name].op_type == "DequantizeLinear" and makers[name].input[1] in stored:
            scale = numpy_helper.to_array(stored[makers[name].input[1]])
            name = makers[name].input[0]
        if name in stored and readers.count(name) == 1:
            yield _Layer(place, node.output[0], floats[node.name], stored[name], scale)


def _run(model: onnx.ModelProto, samples: NamedArrays) -> list[Array]:
    return [*batched_inference(open_session(model.SerializeToString()), samples).run(BATCH).values()]


def _channel_means(
    source: onnx.ModelProto, tensors: Sequence[str], samples: NamedArrays
) -> tuple[list[NamedArrays], dict[str, Floats]]:
    """Return calls with as many samples as memory allows, and the mean of every channel of these tensors of the model.

    The means are float64 of shape (channels,).
    """
    public = {output.name for output in source.graph.output}
    source.graph.output.extend(onnx.ValueInfoProto(name=name) for name in {*tensors} - public)
    session, names = open_session(source.SerializeToString(), level="basic"), [*dict.fromkeys(tensors)]
    inference = batched_inference(session, samples)
    sizes, least = [array.nbytes for array in session.run(names, inference.feed(0, 1))], inference.batch(1)
    count = min(len(inference), least * max(1, MAX_BYTES // (COPIES * max(sizes))))
    batch = inference.batch(max(1, min(BATCH, count, MAX_BYTES // sum(sizes))))
    calls = [inference.feed(start, batch) for start in range(0, count, batch)]
    sums = [[*map(_sums, session.run(names, feed))] for feed in calls]
    return calls, {name: _mean(parts) for name, parts in zip(names, zip(*sums, strict=True), strict=True)}


def _sums(array: Array) -> tuple[Floats, int]:
    """Return the sum of every channel, and of how many values each is."""
    return array.sum(axis=(0, *range(2, array.ndim)), dtype=np.float64), array.size // array.shape[1]


def _mean(sums: Iterable[tuple[Floats, int]]) -> Floats:
    totals, counts = zip(*sums, strict=True)
    return np.asarray(sum(totals) / sum(counts))


def _change_biases(
    proto: onnx.ModelProto, layers: Sequence[_Layer], means: dict[str, Floats], calls: Sequence[NamedArrays]
) -> None:
    """Change the biases in their order: the graph runs from one layer to the next, on all calls."""
    nodes, stored = [*proto.graph.node], {tensor.name: tensor for tensor in proto.graph.initializer}
    last_read = {name: place for place, node in enumerate(nodes) for name in node.input}
    tensors, start = [dict(feed) for feed in calls], 0
    for layer in layers:
        part, start = nodes[start : layer.place + 1], layer.place + 1
        made = {name for node in part for name in node.output if name}
        needed = {name for node in part for name in node.input if name in tensors[0]}
        kept = [name for name in made if last_read.get(name, -1) >= start or name == layer.output]
        weights = [stored[name] for name in {name for node in part for name in node.input} if name in stored]
        inputs = [{name: values[name] for name in needed} for values in tensors]
        outputs = _segment(proto, part, inputs, kept, weights)
        own = _mean(_sums(values[layer.output]) for values in outputs)
        shift = _shift_bias(layer, means[layer.float_output] - own)
        for values, more in zip(tensors, outputs, strict=True):
            spread = shift.reshape(-1, *[1] * (more[layer.output].ndim - 2))
            more[layer.output] = np.add(more[layer.output], spread, dtype=np.float32)
            values |= more
            for name in [name for name in values if last_read.get(name, -1) < start]:
                del values[name]


def _segment(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    calls: Sequence[NamedArrays],
    outputs: Sequence[str],
    weights: Sequence[onnx.TensorProto],
) -> list[NamedArrays]:
    """Run some nodes of a graph on the inputs of every call."""
    described = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)
        for name, array in calls[0].items()
    ]
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "part", described, made, weights)
    model = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    model.functions.extend(proto.functions)
    session: Any = open_session(model.SerializeToString(), level="basic")
    return [dict(zip(outputs, session.run([*outputs], inputs), strict=True)) for inputs in calls]


def _shift_bias(layer: _Layer, wanted: Floats) -> Array:
    """Add to the bias; return by how much it has changed, float32 of shape (channels,)."""
    bias = numpy_helper.to_array(layer.bias)
    if layer.scale is None:
        changed, step = (bias + wanted.reshape(bias.shape)).astype(bias.dtype), np.ones(1)
    else:
        step = layer.scale.astype(np.float64)
        steps = np.divide(wanted, step, out=np.zeros_like(wanted), where=step != 0)
        changed = np.clip(bias.astype(np.int64) + np.rint(steps).astype(np.int64), INT32.min, INT32.max)
        changed = changed.astype(bias.dtype)
    layer.bias.CopyFrom(numpy_helper.from_array(changed, layer.bias.name))
    return np.asarray((changed.astype(np.float64) - bias) * step, np.float32).reshape(-1)
