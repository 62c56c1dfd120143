"""A part of a model, cut out at tensors inside it, as a model of its own."""

import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import signature_from_graph
from gauntlet.datasets.synthetic import draw_samples, has_batch
from gauntlet.onnx_model import model_file
from gauntlet.onnx_model.graph import format_type, read_untrusted_graph, required_inputs
from gauntlet.runtime.subgraph import inputs_of, intermediate_values, needed_for, producers
from wings.inspection.library import refuse_wrong_file

MAX_SIMILAR = 3


class CutModel(Frozen):
    """What was cut out."""

    output: Path
    nodes: int
    nodes_before: int
    inputs: dict[str, str] = Field(description="name -> type and shape")
    outputs: dict[str, str] = Field(description="name -> type and shape")
    not_compared: str = Field("", description="why it was not compared with the whole on random inputs, if it was not")


def cut_model(model: Path, target: Path, inputs: Sequence[str], outputs: Sequence[str]) -> CutModel:
    """Write the part between some tensors, and compare it with the whole on random inputs: it must be equal to the bit.

    Args:
        model: an ONNX file.
        target: where the part goes; for weights too large for one file, the model's folder, where they stay.
        inputs: tensors that become inputs. Inputs of the model that the part still needs stay inputs.
        outputs: tensors that become the outputs; by default those of the model.

    Raises:
        ConfigError: when a tensor does not exist, has no known type, or does not lie before the outputs, and for
            another folder than that of weights too large for one file.
        StageError: when the file cannot be read, or the part differs from the whole.
    """
    refuse_wrong_file(model)
    read_untrusted_graph(model)
    whole = model_file.read_for_editing(model)
    known = _known_types(whole)
    outputs = outputs or [output.name for output in whole.graph.output]
    for name in (*inputs, *outputs):
        _require_tensor(model, name, known)
    part = _part(whole, known, inputs, outputs)
    for name in inputs:
        if name not in {value.name for value in part.graph.input}:
            raise ConfigError(f"{model}: no output needs {name!r}. Fix: choose a tensor that lies before the outputs")
    if model_file.external_locations(part) and target.resolve().parent != model.resolve().parent:
        raise ConfigError(f"{target}: the weights stay in {model.parent}. Fix: write the part to that folder")
    reason = _difference(model, whole, part)
    model_file.write_model(part, target)
    return described(target, part, len(whole.graph.node), reason)


def described(target: Path, part: onnx.ModelProto, nodes_before: int, reason: str) -> CutModel:
    """Return what a written model has; `reason` is why it was not compared."""
    return CutModel(
        output=target,
        nodes=len(part.graph.node),
        nodes_before=nodes_before,
        inputs={value.name: format_type(value) for value in part.graph.input},
        outputs={value.name: format_type(value) for value in part.graph.output},
        not_compared=reason,
    )


def _known_types(whole: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return each tensor of the outermost graph that is computed or given, with the type that ONNX infers."""
    graph = onnx.shape_inference.infer_shapes(whole).graph
    stored = {value.name: value for value in (*graph.value_info, *graph.output, *required_inputs(graph))}
    computed = producers(graph)
    return {name: stored.get(name, onnx.ValueInfoProto(name=name)) for name in (*stored, *computed)}


def _require_tensor(model: Path, name: str, known: dict[str, onnx.ValueInfoProto]) -> None:
    if name not in known:
        similar = ", ".join(difflib.get_close_matches(name, known, MAX_SIMILAR, 0)) or "none"
        raise ConfigError(
            f"{model}: no tensor {name!r} (similar: {similar}). Fix: see gauntlet inspect {model} --graph"
        )
    if not known[name].type.WhichOneof("value"):
        raise ConfigError(f"{model}: ONNX infers no type for {name!r}. Fix: choose a tensor before or behind it")


def _part(
    whole: onnx.ModelProto, known: dict[str, onnx.ValueInfoProto], inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.ModelProto:
    needed = needed_for(whole.graph, outputs, inputs)
    part = onnx.ModelProto()
    part.CopyFrom(whole)
    part.ClearField("metadata_props")  # a signature would describe the whole
    for field in ("node", "initializer", "sparse_initializer", "input", "output", "value_info"):
        part.graph.ClearField(field)
    kept = [node for node in whole.graph.node if (needed - {*inputs}) & {*node.output}]
    part.graph.node.extend(kept)
    used = inputs_of(kept) | {*outputs}
    part.graph.initializer.extend(tensor for tensor in whole.graph.initializer if tensor.name in used)
    part.graph.sparse_initializer.extend(t for t in whole.graph.sparse_initializer if t.values.name in used)
    required = [value.name for value in required_inputs(whole.graph)]
    part.graph.input.extend(known[name] for name in dict.fromkeys((*inputs, *required)) if name in used)
    part.graph.output.extend(known[name] for name in outputs)
    return part


def _difference(model: Path, whole: onnx.ModelProto, part: onnx.ModelProto) -> str:
    """Return why the two cannot be compared; raise `StageError` when they differ."""
    if model_file.external_locations(whole):
        return "its weights are too large"
    try:
        feed = random_feed(whole)
        names = [value.name for value in (*part.graph.input, *part.graph.output)]
        expected = intermediate_values(whole, names, feed) | feed
        outputs = [value.name for value in part.graph.output]
        actual = intermediate_values(part, outputs, {i.name: expected[i.name] for i in part.graph.input})
    except Exception as error:  # ONNX Runtime's share no base
        return f"on random inputs it fails: {one_line(str(error))}"
    differ = [n for n in actual if not np.array_equal(actual[n], expected[n], equal_nan=actual[n].dtype.kind == "f")]
    if differ:
        raise StageError(f"{model}: cut out, {', '.join(differ)} differs from the whole model's on the same inputs")
    return ""


def random_feed(whole: onnx.ModelProto) -> NamedArrays:
    """Return random inputs for one call."""
    signature = signature_from_graph(whole)
    batched = has_batch(signature)
    samples = draw_samples(signature, 1, {}, no_batch_axis=not batched)
    return {name: array if batched else array.reshape(array.shape[1:]) for name, array in samples.items()}
