"""Smooth what a normalization passes to matrix products, so that one range fits all of its channels.

A few channels of a transformer are many times larger than the others, and take the range of an INT8 activation for
themselves. Dividing a channel by a factor where the normalization scales it, and multiplying the weights that read it,
changes nothing in float: Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", ICML 2023. How far it moves is chosen for each normalization, by its products' rounding error.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import one_line
from gauntlet.metrics.output_noise import worst_noise_db
from gauntlet.onnx_model.graph import unused_name
from gauntlet.onnx_model.model_file import bodies, is_large_file, read_model, write_model
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

log = logging.getLogger("gauntlet")

NORMALIZATIONS = {"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"}
STRENGTHS = (0.25, 0.5, 0.75)
"""How much of a channel's size moves into the weights, as exponents."""
WORTH = 0.5
"""Share of the products' error power that may be left: a gain of 3 dB."""
SAME_DB = 60.0
"""Outputs of the smoothed float model against those before, at least: rounding alone is above 100 dB."""
BATCH, ROWS = 4, 256
Stored = dict[str, onnx.TensorProto]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Norm:
    """A normalization by its output, the products that read it, and the residual sums."""

    output: str
    places: tuple[tuple[onnx.NodeProto, int], ...]
    products: tuple[onnx.NodeProto, ...]
    sums: tuple[onnx.NodeProto, ...]


def smooth_inputs(prepared: Path, samples: NamedArrays) -> int:
    """Smooth a float model in its file, where its INT8 products gain; return how many normalizations are smoothed.

    Nodes and their names stay, and sums read copies of some. `samples` are arrays of shape (n, ...) by input.
    """
    if is_large_file(prepared):
        return 0
    proto = read_model(prepared)
    norms = [] if any([*bodies(node)] for node in proto.graph.node) else [*_norms(proto.graph)]
    try:
        count = _smooth(proto, norms, samples) if norms else 0
    except Exception as error:  # the runtime's own exceptions share no public base
        log.debug("inputs of products are not smoothed: %s", one_line(error))
        return 0
    if count:
        read = {name for node in proto.graph.node for name in node.input}
        for tensor in [each for each in proto.graph.initializer if each.name not in read]:
            proto.graph.initializer.remove(tensor)
        write_model(proto, prepared)
    return count


def _smooth(proto: onnx.ModelProto, norms: Sequence[_Norm], samples: NamedArrays) -> int:
    before = batched_inference(open_session(proto.SerializeToString()), samples).run(BATCH)
    rows = _rows(proto, [norm.output for norm in norms], samples)
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    count = 0
    for norm in norms:
        weights = [numpy_helper.to_array(stored[node.input[1]]) for node in norm.products]
        factors = _factors(rows[norm.output], [_by_input(n, w) for n, w in zip(norm.products, weights, strict=True)])
        if factors is not None:
            _scale(proto.graph, stored, norm, factors)
            count += 1
    after = batched_inference(open_session(proto.SerializeToString()), samples).run(BATCH)
    return count if worst_noise_db([*after.values()], [*before.values()]) >= SAME_DB else 0


def _norms(graph: onnx.GraphProto) -> Iterator[_Norm]:
    """Yield normalizations with stored vectors whose output only products with stored weights and sums read."""
    public = {value.name for value in (*graph.input, *graph.output)}
    stored = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in public}
    made_by, read_by = dict[str, onnx.NodeProto](), dict[str, list[onnx.NodeProto]]()
    for node in graph.node:
        made_by |= dict.fromkeys(node.output, node)
        for name in node.input:
            read_by.setdefault(name, []).append(node)
    for output, readers in read_by.items():
        sums, products = ([node for node in readers if (node.op_type == "Add") == is_sum] for is_sum in (True, False))
        places = _places(output, stored, made_by, read_by) if output in made_by and output not in public else []
        sizes = {int(np.prod(stored[node.input[place]].dims)) for node, place in places}
        if len(sizes) == 1 and products and all(_is_product(each, output, stored, *sizes) for each in products):
            yield _Norm(output, tuple(places), tuple(products), tuple(sums))


def _places(
    output: str, stored: Stored, made_by: Mapping[str, onnx.NodeProto], read_by: Mapping[str, list[onnx.NodeProto]]
) -> list[tuple[onnx.NodeProto, int]]:
    """Return where vectors scale and shift an output: in one node, or in a Mul by one, and an Add behind it if any."""
    node = made_by[output]
    if node.op_type in NORMALIZATIONS:
        places = [place for place in (1, 2) if place < len(node.input) and node.input[place]]
        return [(node, place) for place in places] if all(node.input[place] in stored for place in places) else []
    place = next((i for i, name in enumerate(node.input) if name in stored and _is_vector(stored[name])), None)
    if node.op_type == "Mul" and place is not None:
        return [(node, place)]
    if node.op_type != "Add" or place is None:
        return []
    before = node.input[1 - place]
    scaled = len(read_by[before]) == 1 and before in made_by and made_by[before].op_type == "Mul"
    scale = _places(before, stored, made_by, read_by) if scaled else []
    return [*scale, (node, place)] if scale else []


def _is_vector(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.FLOAT and 1 < int(np.prod(tensor.dims)) == tensor.dims[-1]


def _is_product(node: onnx.NodeProto, output: str, stored: Stored, channels: int) -> bool:
    """Return whether a node multiplies the output by stored floats of shape (channels, outputs), or transposed."""
    flags = {attribute.name: attribute.i for attribute in node.attribute}
    if node.op_type not in ("MatMul", "Gemm") or [*node.input].index(output) != 0 or flags.get("transA"):
        return False
    weights = stored.get(node.input[1])
    if weights is None or len(weights.dims) != 2 or weights.data_type != onnx.TensorProto.FLOAT:
        return False
    return bool(weights.dims[1 if flags.get("transB") else 0] == channels)


def _by_input(node: onnx.NodeProto, weights: Floats) -> Floats:
    """Return weights of shape (channels, outputs), whichever way they are stored."""
    return weights.T if any(a.name == "transB" and a.i for a in node.attribute) else weights


def _rows(proto: onnx.ModelProto, tensors: Sequence[str], samples: NamedArrays) -> dict[str, Floats]:
    """Return rows of these tensors of shape (rows, channels): the extremes of each channel, then drawn ones."""
    whole = onnx.ModelProto.FromString(proto.SerializeToString())
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
    outputs = batched_inference(open_session(whole.SerializeToString(), level="basic"), samples).run(BATCH)
    drawn, rows = np.random.default_rng(0), dict[str, Floats]()
    for name in tensors:
        values = outputs[name].reshape(-1, outputs[name].shape[-1])
        some = drawn.permutation(len(values))[:ROWS]
        rows[name] = np.concatenate([values.min(axis=0)[None], values.max(axis=0)[None], values[some]])
    return rows


def _factors(rows: Floats, weights: Sequence[Floats]) -> Floats | None:
    """Return by what to divide each channel of the rows, shape (channels,); None where nothing is worth it."""
    size, other = np.abs(rows).max(axis=0), np.max([np.abs(w).max(axis=1) for w in weights], axis=0)
    used = (size > 0) & (other > 0)
    best, factors = WORTH * _error(rows, weights, np.ones_like(size)), None
    for strength in STRENGTHS:
        tried = np.where(used, size**strength / np.where(used, other, 1) ** (1 - strength), 1).astype(np.float32)
        tried[used] /= np.exp(np.log(tried[used]).mean())
        if used.any() and (error := _error(rows, weights, tried)) < best:
            best, factors = error, tried
    return factors


def _error(rows: Floats, weights: Sequence[Floats], factors: Floats) -> float:
    """Return the power of what rounding changes in the products: 8 bits, one range for rows, one per weights' output.

    The first two rows are the extremes of each channel, which are not multiplied.
    """
    scaled = rows / factors
    low, high = min(float(scaled[0].min()), 0.0), max(float(scaled[1].max()), 0.0)
    step = max(high - low, 1e-30) / 255
    rounded = np.round(scaled[2:] / step) * step
    total = 0.0
    for each in weights:
        moved = each * factors[:, None]
        steps = np.maximum(np.abs(moved).max(axis=0), 1e-30) / 127
        total += float(np.square(rounded @ (np.round(moved / steps) * steps) - rows[2:] @ each).sum())
    return total


def _scale(graph: onnx.GraphProto, stored: Stored, norm: _Norm, factors: Floats) -> None:
    """Divide a normalization's vectors by the factors, and multiply the weights behind it; others keep theirs."""
    if norm.sums:
        _let_sums_read_a_copy(graph, norm)
    for node, place in norm.places:
        vector = numpy_helper.to_array(stored[node.input[place]])
        node.input[place] = _store(graph, stored, node.input[place], vector / factors)
    for product in norm.products:
        weights = numpy_helper.to_array(stored[product.input[1]])
        rows = factors if _by_input(product, weights) is not weights else factors[:, None]
        product.input[1] = _store(graph, stored, product.input[1], weights * rows)


def _let_sums_read_a_copy(graph: onnx.GraphProto, norm: _Norm) -> None:
    """Repeat the nodes that scale and shift for the sums: cheaper than to scale back, and not rounded twice."""
    taken, copies = {n for node in graph.node for n in (node.name, *node.input, *node.output)}, dict[str, str]()
    for output, node in {node.output[0]: node for node, _ in norm.places}.items():
        copies[output] = made = unused_name(f"{output}_sum", taken)
        place = [*graph.node].index(node) + 1
        graph.node.insert(place, node)
        copy = graph.node[place]
        copy.name, copy.input[:], copy.output[:] = made, [copies.get(name, name) for name in node.input], [made]
    for each in norm.sums:
        each.input[:] = [copies.get(name, name) for name in each.input]


def _store(graph: onnx.GraphProto, stored: Stored, name: str, values: Array) -> str:
    """Store changed values beside the former ones, whose other readers keep them; return their name."""
    new = unused_name(f"{name}_smooth", stored)
    stored[new] = numpy_helper.from_array(values.astype(np.float32), new)
    graph.initializer.append(stored[new])
    return new
