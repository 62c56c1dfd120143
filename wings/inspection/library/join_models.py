"""A detector and the model that reads what it finds, as one model: each box is cut out of the image in the graph."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.onnx_model import model_file
from gauntlet.onnx_model.graph import opset_versions, read_untrusted_graph, required_inputs, tensor_shape
from gauntlet.runtime.subgraph import intermediate_values
from wings.inspection.library import refuse_wrong_file
from wings.inspection.library.cut_model import CutModel, described, random_feed

MIN_OPSET = 16
"""From which on RoiAlign takes coordinates as detectors give them."""
CUT_OUT = """cut_out (image, boxes) => (crops) {{
  four = Constant<value = int64[2] {{-1, 4}}>() zero = Constant<value = int64 {{0}}>()
  one = Constant<value = int64 {{1}}>() ones = Constant<value = int64[1] {{1}}>()
  flat = Reshape(boxes, four) total = Shape<start = 0, end = 1>(flat) images = Shape<start = 0, end = 1>(image)
  share = Div(total, images) each = Max(share, ones) last = Squeeze(total) places = Range(zero, last, one)
  owners = Div(places, each)
  crops = RoiAlign<output_height = {height}, output_width = {width}, sampling_ratio = 2>(image, flat, owners) }}"""
AS_BOXES = """as_boxes (boxes, found) => (shaped) {
  lead = Shape<end = -1>(boxes) rest = Shape<start = 1>(found) shape = Concat<axis = 0>(lead, rest)
  shaped = Reshape<allowzero = 1>(found, shape) }"""
BEST_CLASS = """best_class (scores) => (found) {{
  best = ArgMax<axis = -1, keepdims = 0>(scores) found = Cast<to = {kind}>(best) }}"""
IN_ORDER = """in_order (boxes, scores) => (best) {{
  four = Constant<value = int64[2] {{-1, 4}}>() flat = Reshape(boxes, four)
  first = Constant<value = int64 {{{edge}}}>() edges = Gather<axis = 1>(flat, first) total = Shape(edges)
  sorted, order = TopK<largest = 0>(edges, total) read = Gather(scores, order)
  best = ArgMax<axis = -1, keepdims = 0>(read) }}"""
EACH_BOX = """as_row (best) => (text) { row = Constant<value = int64[2] {1, -1}>() text = Reshape(best, row) }"""
BEST_PATH = """best_path (best) => (text) {
  row = Constant<value = int64[2] {1, -1}>() one = Constant<value = int64 {1}>() ones = Constant<value = int64[1] {1}>()
  zeros = Constant<value = int64[1] {0}>() last = Constant<value = int64[1] {-1}>()
  blank = Constant<value = int64 {0}>()
  start = Slice(best, zeros, ones, ones) nothing = Mul(start, blank) rest = Slice(best, zeros, last, ones)
  before = Concat<axis = 1>(nothing, rest) repeated = Equal(best, before) empty = Equal(best, blank)
  dropped = Or(repeated, empty) kept = Not(dropped) characters = Compress(best, kept)
  numbers = Sub(characters, one) text = Reshape(numbers, row) }"""
"""Of connectionist temporal classification: repeats are joined, and class i + 1 is label i; 0 is no character."""
TEXT, EDGES = "text", ("left", "top")
READ, CUT = "reader/", "cut/"


def join_models(
    detector: Path, reader: Path, target: Path, boxes: str, classes: str | None = None, text: str | None = None
) -> CutModel:
    """Write one model of both, and compare its parts with the two on random inputs: they must be equal to the bit.

    Args:
        detector: an ONNX file that takes images, shape (n, channels, height, width).
        reader: an ONNX file that takes images of one size and as many channels, in any number.
        target: where the model goes.
        boxes: output of the detector: left, top, right and bottom in pixels, shape (boxes, 4) for one image, or
            (n, boxes, 4). Outputs of the reader have these axes in place of their first one.
        classes: output of the detector that becomes the class with the reader's highest score.
        text: edge by which boxes of the one image of a call are read in order, one of `EDGES`. The numbers of the
            labels that are read become the first output, `text`, shape (1, characters): the best class of each box,
            or its best path, where the reader's first output has shape (n, positions, 1 + labels).

    Raises:
        ConfigError: when the two do not fit.
        StageError: when a file cannot be read, or the model is not equal to the two.
    """
    for path in (detector, reader):
        refuse_wrong_file(path)
        read_untrusted_graph(path)
    whole, second = model_file.read_for_editing(detector), model_file.read_for_editing(reader)
    image, height, width = _require_fit(detector, whole, reader, second)
    outputs = {value.name: value for value in whole.graph.output}
    if unknown := [name for name in (boxes, *filter(None, [classes])) if name not in outputs]:
        raise ConfigError(f"{detector}: no output {unknown[0]!r}; available: {', '.join(outputs)}")
    if text is not None and (TEXT in outputs or not _is_one_image(outputs[boxes])):
        raise ConfigError(f"{detector}: --text needs boxes of one image, (boxes, 4), and no other output {TEXT!r}")
    joined, nodes = onnx.ModelProto(), len(whole.graph.node) + len(second.graph.node)
    joined.CopyFrom(whole)
    joined.ClearField("metadata_props")  # a signature would describe the detector
    joined.ir_version = max(whole.ir_version, second.ir_version)
    joined.opset_import.extend(each for each in second.opset_import if each not in whole.opset_import)
    joined.functions.extend(second.functions)
    _attach(joined, onnx.parser.parse_graph(CUT_OUT.format(height=height, width=width)), CUT, [image, boxes])
    _attach(joined, second.graph, READ, [f"{CUT}crops"])
    _attach_outputs(joined, second.graph, outputs, boxes, classes)
    if text is not None:
        _attach_text(joined, second.graph, boxes, EDGES.index(text))
    reason = _difference(whole, second, joined, classes)
    model_file.write_model(joined, target)
    return described(target, joined, nodes, reason)


def _require_fit(detector: Path, whole: Any, reader: Path, second: Any) -> tuple[str, int, int]:
    """Return the name of the detector's image input, and the height and width of the reader's images."""
    images = [v for v in required_inputs(whole.graph) if len(tensor_shape(v) or ()) == 4]
    takes = [list(tensor_shape(value) or ()) for value in required_inputs(second.graph)]
    if len(images) != 1 or len(takes) != 1 or len(takes[0]) != 4:
        raise ConfigError(f"{detector} and {reader}: each needs one input of images, with four axes")
    if not all(isinstance(axis, int) for axis in takes[0][1:]) or isinstance(takes[0][0], int):
        raise ConfigError(f"{reader}: takes {takes[0]}. Fix: export it for an open batch, and one size of images")
    channels = (tensor_shape(images[0]) or ())[1]
    if channels != takes[0][1]:
        raise ConfigError(f"{reader}: takes {takes[0][1]} channels, the detector {channels}. Fix: export it for those")
    first, other = opset_versions(whole), opset_versions(second)
    if any(first.get(domain, version) != version for domain, version in other.items()) or first["ai.onnx"] < MIN_OPSET:
        raise ConfigError(
            f"{detector} has opsets {first}, {reader} {other}. Fix: export both with one from {MIN_OPSET} on"
        )
    if any(map(model_file.external_locations, (whole, second))):
        raise ConfigError(f"{detector}: weights above 2 GB cannot be joined")
    height, width = (int(axis or 0) for axis in takes[0][2:])
    return images[0].name, height, width


def _attach(whole: onnx.ModelProto, part: onnx.GraphProto, prefix: str, feeds: list[str]) -> None:
    """Append a graph with a prefix before its names; `feeds` are tensors of the whole for its inputs, in order."""
    weights = {tensor.name for tensor in part.initializer}
    inputs = [value.name for value in part.input if value.name not in weights]
    added = onnx.compose.add_prefix_graph(part, prefix)
    for name, feed in zip(inputs, feeds, strict=True):
        whole.graph.node.add(op_type="Identity", input=[feed], output=[prefix + name])
    whole.graph.node.extend(added.node)
    whole.graph.initializer.extend(added.initializer)


def _attach_outputs(joined: Any, reader: Any, outputs: dict[str, Any], boxes: str, classes: str | None) -> None:
    """Add the reader's outputs, with the axes of the boxes; the best class of the first one may replace `classes`."""
    lead = (tensor_shape(outputs[boxes]) or ())[:-1]
    for number, value in enumerate(reader.output):
        name = value.name if value.name not in outputs else READ + value.name
        prefix = f"boxes{number}/"
        _attach(joined, onnx.parser.parse_graph(AS_BOXES), prefix, [boxes, f"{READ}{value.name}"])
        if classes is not None and number == 0:
            for node in joined.graph.node:  # what the detector said gets another name
                node.output[:] = [f"detector/{n}" if n == classes else n for n in node.output]
                node.input[:] = [f"detector/{n}" if n == classes else n for n in node.input]
            best = BEST_CLASS.format(kind=outputs[classes].type.tensor_type.elem_type)
            _attach(joined, onnx.parser.parse_graph(best), "class/", [f"{prefix}shaped"])
            joined.graph.node.add(op_type="Identity", input=["class/found"], output=[classes])
        joined.graph.node.add(op_type="Identity", input=[f"{prefix}shaped"], output=[name])
        kind, shape = value.type.tensor_type.elem_type, (*lead, *(tensor_shape(value) or ())[1:])
        joined.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, shape))


def _is_one_image(boxes: Any) -> bool:
    shape = tensor_shape(boxes) or ()
    return len(shape) == 2 or shape[:1] == (1,)


def _attach_text(joined: Any, reader: Any, boxes: str, edge: int) -> None:
    """Add the output `text` before all others."""
    scores, ctc = reader.output[0], len(tensor_shape(reader.output[0]) or ()) == 3
    _attach(joined, onnx.parser.parse_graph(IN_ORDER.format(edge=edge)), "order/", [boxes, f"{READ}{scores.name}"])
    _attach(joined, onnx.parser.parse_graph(BEST_PATH if ctc else EACH_BOX), "text/", ["order/best"])
    joined.graph.node.add(op_type="Identity", input=["text/text"], output=[TEXT])
    others = [*joined.graph.output]
    del joined.graph.output[:]
    added = onnx.helper.make_tensor_value_info(TEXT, onnx.TensorProto.INT64, (1, "characters"))
    joined.graph.output.extend([added, *others])


def _difference(whole: Any, second: Any, joined: Any, classes: str | None) -> str:
    """Return why the model cannot be compared with the two; raise `StageError` when it differs."""
    kept = [value.name for value in whole.graph.output if value.name != classes]
    read = [value.name for value in second.graph.output]
    try:
        feed = random_feed(whole)
        expected = intermediate_values(whole, kept, feed)
        actual = intermediate_values(joined, [*kept, f"{CUT}crops", *(READ + name for name in read)], feed)
        [entry] = required_inputs(second.graph)
        later = intermediate_values(second, read, {entry.name: actual[f"{CUT}crops"]})
    except Exception as error:  # ONNX Runtime's share no base
        return f"on random inputs it fails: {one_line(str(error))}"
    expected |= {READ + name: array for name, array in later.items()}
    if differ := [name for name in expected if not np.array_equal(actual[name], expected[name], equal_nan=True)]:
        raise StageError(f"joined, {', '.join(differ)} differs from the two models' on the same inputs")
    return "" if len(actual[f"{CUT}crops"]) else "on random inputs the detector finds nothing"
