"""Reduce a model that a pass breaks to the smallest subgraph that still fails.

The method is that of `polygraphy debug reduce`: bisect for the shortest failing prefix of the graph, then for its
shortest failing suffix, then remove single nodes. Outputs of removed nodes become inputs, with their real values.
"""

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from time import monotonic

import numpy as np
import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.error_metrics import max_rel_error
from gauntlet.metrics.output_comparison import Tolerances, output_difference
from gauntlet.onnx_model.graph import node_label
from gauntlet.onnx_model.model_file import write_model
from gauntlet.runtime.batched_inference import batched_inference, tensor_output_names
from gauntlet.runtime.session import open_session
from gauntlet.runtime.subgraph import extract_subgraph, intermediate_values, producers
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess
from tasks.optimize.graph_pass import GraphPass, apply_pass
from tasks.optimize.verified_pass import PassFailure, validity_error

MODEL, RESULT, INPUTS = "failing.onnx", "after.onnx", "inputs.npz"
MAX_SINGLE_REMOVALS = 64  # single nodes are removed from subgraphs of at most this many nodes


class FailingModel(Frozen):
    """The nodes and files of the smallest failing subgraph, and the first tensor that differs in the full model."""

    nodes: tuple[str, ...]
    files: tuple[Path, ...]
    first_divergence: str | None


class ReductionSettings(Frozen):
    """The failure to reproduce, and the limits of the search."""

    graph_pass: GraphPass
    kind: PassFailure
    numerics: Tolerances
    budget_s: float
    try_s: float
    memory_bytes: int


def reduce_failing_model(settings: ReductionSettings, model: Path, golden: Path, folder: Path) -> FailingModel | None:
    """Write the smallest failing model, the model after the pass, and its inputs; None if it cannot be reproduced."""
    whole, deadline = onnx.load(model), monotonic() + settings.budget_s
    model_outputs = frozenset(output.name for output in whole.graph.output)

    def fails(proto: onnx.ModelProto, feed: NamedArrays) -> bool:
        return monotonic() < deadline and _trial(settings, proto, feed, model_outputs) == settings.kind

    feed = next((feed for feed in _feeds(settings, model, golden) if fails(whole, feed)), None)
    if feed is None:
        return None
    divergence = _first_divergence(settings, whole, feed) if settings.kind == "wrong" else None
    kept, feed = _reduced(whole, feed, fails)
    write_model(kept, folder / MODEL)
    np.savez(folder / INPUTS, allow_pickle=False, **{name: _with_unicode(array) for name, array in feed.items()})
    if settings.kind != "crash":
        try:
            apply_pass(settings.graph_pass, folder / MODEL, folder / RESULT)
        except Exception:  # the failure may be this exception
            (folder / RESULT).unlink(missing_ok=True)
    nodes = tuple(node_label(node) for node in kept.graph.node)
    files = [file for first in (MODEL, RESULT, INPUTS) for file in sorted(folder.glob(f"{first}*"))]
    return FailingModel(nodes=nodes, files=tuple(files), first_divergence=divergence)


def _feeds(settings: ReductionSettings, model: Path, golden: Path) -> Iterator[NamedArrays]:
    """Yield the inputs of single calls, as in the comparison that failed."""
    session = open_session(model)
    for case in Golden.load(golden).cases.values():
        prepared = batched_inference(session, case.inputs)
        for batch in dict.fromkeys(prepared.batch(size) for size in settings.numerics.batch_sizes):
            yield prepared.feed(0, batch)


def _reduced(
    whole: onnx.ModelProto, feed: NamedArrays, fails: Callable[[onnx.ModelProto, NamedArrays], bool]
) -> tuple[onnx.ModelProto, NamedArrays]:
    """Return the smallest failing subgraph found, and its inputs; the whole model when no subgraph fails."""
    stored = _with_stored_constants(whole)
    proto = onnx.shape_inference.infer_shapes(stored if fails(stored, feed) else whole)
    values = feed | intermediate_values(proto, producers(proto.graph), feed)

    def subgraph(kept: Collection[int]) -> tuple[onnx.ModelProto, NamedArrays]:
        return extract_subgraph(proto, kept, values)

    count = len(proto.graph.node)
    if not fails(*subgraph(range(count))):
        return whole, feed
    end = 1 + bisect_left(range(1, count), True, key=lambda length: fails(*subgraph(range(length))))
    size = 1 + bisect_left(range(1, end), True, key=lambda length: fails(*subgraph(range(end - length, end))))
    kept = list(range(end - size, end))
    for index in list(kept) if len(kept) <= MAX_SINGLE_REMOVALS else ():
        fewer = [other for other in kept if other != index]
        if fewer and fails(*subgraph(fewer)):
            kept = fewer
    return subgraph(kept)


def _trial(
    settings: ReductionSettings, proto: onnx.ModelProto, feed: NamedArrays, model_outputs: Collection[str]
) -> PassFailure:
    arguments = (settings.graph_pass, proto, feed, settings.numerics, model_outputs)
    if settings.kind != "crash":  # else each trial runs in a subprocess
        return observed_failure(*arguments)
    try:
        return run_in_subprocess(
            observed_failure, *arguments, timeout_s=settings.try_s, memory_bytes=settings.memory_bytes
        ).value
    except SubprocessFailed:
        return "crash"


def observed_failure(
    graph_pass: GraphPass, proto: onnx.ModelProto, feed: NamedArrays, limits: Tolerances, model_outputs: Collection[str]
) -> PassFailure:
    """Apply a pass to a model, compare the outputs of one call, and return the kind of failure, if any.

    Outputs named in `model_outputs`, those of the whole model, must keep all limits; an intermediate tensor only the
    relative error, because its values may have any magnitude and its largest is not a class.
    """
    with tempfile.TemporaryDirectory() as folder:
        before, result = Path(folder, MODEL), Path(folder, RESULT)
        write_model(proto, before)
        try:
            expected = _outputs(before, feed)
        except Exception:  # ONNX Runtime's own types: a subgraph that does not run proves nothing
            return ""
        try:
            after = apply_pass(graph_pass, before, result)
        except MemoryError:
            raise
        except Exception:  # passes may raise anything
            return "fails"
        if validity_error(proto, after, result):
            return "invalid"
        try:
            actual = _outputs(result, feed)
        except StageError:
            return "invalid"
        except Exception:  # ONNX Runtime's own types
            return "wrong"
    close = (_is_close(actual[n], value, limits, is_model_output=n in model_outputs) for n, value in expected.items())
    return "" if all(close) else "wrong"


def _outputs(model: Path, feed: NamedArrays) -> NamedArrays:
    session = open_session(model, threads=1)
    names = tensor_output_names(session)
    values = session.run(names, {i.name: feed[i.name] for i in session.get_inputs()})
    return {name: _with_unicode(np.asarray(value)) for name, value in zip(names, values, strict=True)}


def _with_unicode(array: np.ndarray) -> np.ndarray:
    return array.astype(np.str_) if array.dtype == object else array  # ONNX Runtime returns strings as objects


def _is_close(actual: np.ndarray, expected: np.ndarray, limits: Tolerances, *, is_model_output: bool) -> bool:
    if expected.dtype.kind == "f" and not np.isfinite(expected).all():
        return True  # not comparable
    if actual.shape != expected.shape:
        return False
    difference = output_difference("", 1, "", np.atleast_1d(actual), np.atleast_1d(expected))
    return difference.within(limits) if is_model_output else difference.max_rel_error <= limits.max_rel_error


def _first_divergence(settings: ReductionSettings, before: onnx.ModelProto, feed: NamedArrays) -> str | None:
    """Return the first tensor after the pass whose name existed before and whose value did not.

    A fused node may keep its output's name, so the value may equal any old tensor of the same shape.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, result = Path(folder, MODEL), Path(folder, RESULT)
        write_model(before, model)
        try:
            after = apply_pass(settings.graph_pass, model, result)
            old = intermediate_values(before, producers(before.graph), feed)
            nodes = producers(after.graph)
            new = intermediate_values(after, nodes, feed)
        except Exception as error:  # ONNX Runtime's own types: a result that does not run has no intermediate tensors
            return f"it does not run: {one_line(error)}"
    for name, value in new.items():
        if name not in old or value.dtype.kind not in "fiub":
            continue
        candidates = [v for v in (old[name], *old.values()) if v.shape == value.shape]
        if not any(max_rel_error(value, v) <= settings.numerics.max_rel_error for v in candidates):
            relative = f"relative error {max_rel_error(value, candidates[0]):.3g}" if candidates else ""
            return f"'{name}' ({node_label(nodes[name])}, {relative or f'shape {value.shape}'})"
    return None


def _with_stored_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with initializers in place of Constant nodes, so that a subgraph keeps exactly those it uses."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for node in [n for n in copy.graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"]:
        tensor = copy.graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        copy.graph.node.remove(node)
    return copy
