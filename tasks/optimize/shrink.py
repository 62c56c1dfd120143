"""The smallest part of a model that a pass breaks: the nodes are named, and anybody can run it.

The part is found as by `polygraphy debug reduce`: the shortest beginning of the graph that still fails, then the
shortest end of that, then node by node. What the cut-off nodes computed becomes the part's inputs, with real values.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from time import monotonic
from typing import Literal

import numpy as np
import onnx

from tasks.agreement import NumericsConfig, compare
from tasks.data.golden import Golden
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import write_model
from tasks.optimize.graph_pass import GraphPass, apply_pass
from tasks.optimize.transaction import Kind, complaint
from tasks.runtime.calls import Arrays, calls, tensor_outputs
from tasks.runtime.graph import label, one_line
from tasks.runtime.inner import inner_values, made_by_nodes, part_of
from tasks.runtime.sandbox import ChildFailed, run_apart
from tasks.runtime.session import open_session
from tasks.statistics import max_rel_error

MODEL, RESULT, INPUTS = "failing.onnx", "after.onnx", "inputs.npz"
EACH_ALONE = 64
"""Of so many nodes at the most, each is tried without."""


class Failing(Frozen):
    """What is known of the failure."""

    nodes: tuple[str, ...]
    first_divergence: str | None


class Search(Frozen):
    """How a failure is looked for."""

    graph_pass: GraphPass
    kind: Kind
    numerics: NumericsConfig
    budget_s: float
    where: Literal["here", "apart"]
    try_s: float
    memory_bytes: int


def smallest(search: Search, source: Path, golden: Path, folder: Path) -> Failing | None:
    """Write the smallest failing model, what the pass makes of it, and its inputs to a folder.

    Returns:
        The nodes, or None when the failure does not happen again.
    """
    whole, deadline = onnx.load(source), monotonic() + search.budget_s
    answers = frozenset(output.name for output in whole.graph.output)

    def fails(proto: onnx.ModelProto, feed: Arrays) -> bool:
        return monotonic() < deadline and _way_to_fail(search, proto, feed, answers) == search.kind

    feed = next((feed for feed in _feeds(search, source, golden) if fails(whole, feed)), None)
    if feed is None:
        return None
    divergence = _first_divergence(search, whole, feed) if search.kind == "wrong" else None
    kept, feed = _reduced(whole, feed, fails)
    write_model(kept, folder / MODEL)
    np.savez(folder / INPUTS, allow_pickle=False, **{name: _text(array) for name, array in feed.items()})
    if search.where == "here":
        try:
            apply_pass(search.graph_pass, folder / MODEL, folder / RESULT)
        except Exception:  # that may be what is wrong with the pass
            (folder / RESULT).unlink(missing_ok=True)
    return Failing(nodes=tuple(label(node) for node in kept.graph.node), first_divergence=divergence)


def _feeds(search: Search, source: Path, golden: Path) -> Iterator[Arrays]:
    """Yield calls of the model, as the comparison made them."""
    session = open_session(source)
    for case in Golden.load(golden).cases.values():
        prepared = calls(session, case.inputs)
        for batch in dict.fromkeys(prepared.batch(size) for size in search.numerics.batch_sizes):
            yield prepared.feed(0, batch)


def _reduced(
    whole: onnx.ModelProto, feed: Arrays, fails: Callable[[onnx.ModelProto, Arrays], bool]
) -> tuple[onnx.ModelProto, Arrays]:
    """Return the smallest part found that fails, and its inputs; the whole where no part of it does."""
    stored = _with_stored_constants(whole)
    proto = stored if fails(stored, feed) else whole
    proto = onnx.shape_inference.infer_shapes(proto)
    values = feed | inner_values(proto, made_by_nodes(proto.graph), feed)

    def part(kept: Collection[int]) -> tuple[onnx.ModelProto, Arrays]:
        return part_of(proto, kept, values)

    count = len(proto.graph.node)
    if not fails(*part(range(count))):
        return whole, feed
    end = _bisect(1, count, lambda place: fails(*part(range(place))))
    start = end - _bisect(1, end, lambda length: fails(*part(range(end - length, end))))
    kept = list(range(start, end))
    for place in list(kept) if len(kept) <= EACH_ALONE else ():
        fewer = [other for other in kept if other != place]
        if fewer and fails(*part(fewer)):
            kept = fewer
    return part(kept)


def _bisect(low: int, high: int, fails: Callable[[int], bool]) -> int:
    """Return a small number for which it fails, given that it fails for `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle + 1, high)
    return high


def _way_to_fail(search: Search, proto: onnx.ModelProto, feed: Arrays, answers: Collection[str]) -> Kind:
    arguments = (search.graph_pass, proto, feed, search.numerics, answers)
    if search.where == "here":
        return way_to_fail(*arguments)
    try:
        return run_apart(way_to_fail, *arguments, timeout_s=search.try_s, memory_bytes=search.memory_bytes).value
    except ChildFailed:
        return "crash"


def way_to_fail(
    graph_pass: GraphPass, proto: onnx.ModelProto, feed: Arrays, limits: NumericsConfig, answers: Collection[str]
) -> Kind:
    """Apply a pass to a model and compare the outputs of one call; return in which way that fails, if it does.

    Outputs among `answers`, the whole model's, must keep to all limits. Of an inner tensor only the relative error
    tells: its values may be of any size, and its largest is no class.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, MODEL), Path(folder, RESULT)
        write_model(proto, source)
        try:
            expected = _outputs(source, feed)
        except Exception:  # of the runtime's own types: a part that does not run by itself tells nothing
            return ""
        try:
            after = apply_pass(graph_pass, source, target)
        except MemoryError:
            raise
        except Exception:  # passes raise what they like
            return "fails"
        if complaint(proto, after, target):
            return "invalid"
        try:
            actual = _outputs(target, feed)
        except StageError:
            return "invalid"
        except Exception:  # of the runtime's own types
            return "wrong"
    near = (_near(actual[name], value, limits, answer=name in answers) for name, value in expected.items())
    return "" if all(near) else "wrong"


def _outputs(model: Path, feed: Arrays) -> Arrays:
    session = open_session(model, threads=1)
    names = tensor_outputs(session)
    values = session.run(names, {i.name: feed[i.name] for i in session.get_inputs()})
    return {name: _text(np.asarray(value)) for name, value in zip(names, values, strict=True)}


def _text(array: np.ndarray) -> np.ndarray:
    return array.astype(np.str_) if array.dtype == object else array  # strings, as the runtime gives them


def _near(actual: np.ndarray, expected: np.ndarray, limits: NumericsConfig, *, answer: bool) -> bool:
    if expected.dtype.kind == "f" and not np.isfinite(expected).all():
        return True  # then nothing is proven
    if actual.shape != expected.shape:
        return False
    found = compare("", 1, "", np.atleast_1d(actual), np.atleast_1d(expected))
    return found.within(limits) if answer else found.max_rel_error <= limits.max_rel_error


def _first_divergence(search: Search, before: onnx.ModelProto, feed: Arrays) -> str | None:
    """Return the first tensor of the result that bears an old name and has no old value.

    A node may have swallowed the one behind it and kept its own name, so any old tensor of the same shape will do.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, MODEL), Path(folder, RESULT)
        write_model(before, source)
        try:
            after = apply_pass(search.graph_pass, source, target)
            old = inner_values(before, made_by_nodes(before.graph), feed)
            makers = made_by_nodes(after.graph)
            new = inner_values(after, makers, feed)
        except Exception as error:  # of the runtime's own types: a result that does not run has no inner tensors
            return f"it does not run: {one_line(error)}"
    for name, value in new.items():
        if value.dtype.kind not in "fiub":
            continue
        like = [v for v in (old[name], *old.values()) if v.shape == value.shape] if name in old else []
        if name in old and not any(max_rel_error(value, v) <= search.numerics.max_rel_error for v in like):
            how_far = f"relative error {max_rel_error(value, like[0]):.3g}" if like else f"shape {value.shape}"
            return f"'{name}' ({label(makers[name])}, {how_far})"
    return None


def _with_stored_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose Constant nodes are weights: a part keeps the weights that it uses, and no foreign node."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for node in [n for n in copy.graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"]:
        tensor = copy.graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        copy.graph.node.remove(node)
    return copy
