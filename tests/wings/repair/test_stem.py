"""First units are left in float where they are faster so: in a candidate of their own, and in every set of a repair."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from test_smallest_set import ABCD, Known, searched, sets
from uneven_networks import LIMITS, Network, mended

from gauntlet.core.workspace import Workspace
from wings.repair import RepairFacts, stem
from wings.repair.stem import MIN_GAIN, Stem, find_stem, stem_length, unit_times

NARROW_AND_WIDE = """
    network (float[1,3,64,64] input) => (float[1,64,16,16] y)
    <float[8,3,3,3] w1, float[64,8,4,4] w2, float[64,64,3,3] w3, float[64,64,3,3] w4> {
        [narrow] a = Conv<pads = [1, 1, 1, 1]>(input, w1) [relu] b = Relu(a)
        [wide] c = Conv<strides = [4, 4]>(b, w2) [wider] d = Conv<pads = [1, 1, 1, 1]>(c, w3)
        [sum] e = Add(d, c) [widest] y = Conv<pads = [1, 1, 1, 1]>(e, w4)
    }
"""


@pytest.mark.parametrize(
    ("integer_us", "float_us", "border_us", "length", "gain"),
    [
        ([40, 20, 20, 20], [30, 40, 40, 40], [2, 1, 1, 0], 1, 0.08),
        ([40, 20, 20, 20], [30, 40, 40, 40], [8, 1, 1, 0], 0, 0),  # the conversion takes what floats gain
        ([40, 20, 20, 20], [30, 18, 40, 40], [9, 1, 1, 0], 2, 0.11),  # a cheaper border lies behind the second
        ([40, 20, 20, 20], [37, 20, 19, 18], [0, 0, 0, 0], 1, MIN_GAIN),
        ([40, 20, 20, 20], [20, 19.2, 40, 40], [0, 0, 0, 0], 1, 0.2),  # hardly more behind the second
        ([40, 20, 20, 20], [50, 40, 10, 5], [0, 0, 0, 0], 0, 0),
        ([40, 40], [1, 1], [0, 0], 1, 39 / 80),  # not all of it: that would be the FP32 model
    ],
)
def test_stem_ends_where_floats_gain_most(
    integer_us: list[float], float_us: list[float], border_us: list[float], length: int, gain: float
) -> None:
    assert stem_length(*map(np.array, (integer_us, float_us, border_us))) == (length, pytest.approx(gain))


def test_kernels_count_for_the_unit_that_they_are_named_after() -> None:
    def kernel(name: str, us: int, elements: int = 1) -> tuple[str, dict[str, object]]:
        return name, {"dur": us, "args": {"output_size": str(4 * elements)}}

    kernels = [
        kernel("ReorderInput", 1),
        kernel("a_nchwc", 10),
        kernel("conv_2_token_7", 20, 5),
        kernel("Transpose", 3),
    ]
    slow = [(name, event | {"dur": 1000}) for name, event in kernels]
    times, elements = unit_times([*kernels, *slow, *kernels], {"a": 0, "conv_2": 1}, 2)
    assert (list(times), list(elements)) == ([11, 23], [1, 1])


@pytest.mark.parametrize(("narrow_us", "nodes"), [(1, ("narrow", "relu")), (900, ())])
def test_narrow_units_at_the_inputs_are_left_in_float_where_they_are_faster_so(
    narrow_us: int, nodes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels are those of real sessions, the times given: which is faster is each processor's to say."""
    file = Path(onnx_text.save(tmp_path / "model.onnx", NARROW_AND_WIDE))

    def timed(models: tuple[Path, Path], samples: dict[str, np.ndarray]) -> list[object]:
        integers, floats = real(models, samples)
        wide = {name for name, _ in floats if name.partition("_")[0] in ("wide", "wider", "sum", "widest", *"cdey")}
        assert 0 < len(wide) < len(dict(floats))
        float_us = {name: 1000 if name in wide else narrow_us for name, _ in floats}
        return [[(n, e | {"dur": 500}) for n, e in integers], [(n, e | {"dur": float_us[n]}) for n, e in floats]]

    real = stem._profiles
    monkeypatch.setattr(stem, "_profiles", timed)
    found = find_stem(file, file, {"input": np.zeros((1, 3, 64, 64), np.float32)})
    assert (found.nodes, found.of) == (nodes, 6)


def test_search_starts_from_the_stem() -> None:
    evaluator = Known(ABCD, {"": 15, "a": 22}, {"": 15, "a": 30})
    evaluator.stem = frozenset({"stem"})
    assert sets(searched(evaluator)[0]) == ["a"]
    evaluator.predicted = {"": 30}
    evaluator.real = {"": 30}
    assert sets(searched(evaluator)[0]) == [""]


@pytest.mark.slow
@pytest.mark.parametrize("rejected", [True, False])
def test_float_stem_is_in_the_file(
    rejected: bool, network: Network, workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = network.convolutions[0]
    monkeypatch.setattr("wings.repair.find_stem", lambda *_: Stem(nodes=(first,), gain=0.1, of=9))
    out = workspace(network.trained.store)
    report = mended(network, out, LIMITS, rejected=rejected)
    nodes = {node.name: node for node in onnx.load(out.path(report.artifacts["model"])).graph.node}
    readers = {name for node in nodes.values() if node.op_type == "DequantizeLinear" for name in node.output}
    assert readers.isdisjoint(nodes[first].input)
    assert not readers.isdisjoint(nodes[network.convolutions[-1]].input) or rejected
    assert first in report.facts.float_nodes
    assert bool(report.facts.trials) == rejected


def test_candidate_without_a_stem_gains_nothing(network: Network, workspace: Callable[..., Workspace]) -> None:
    facts: RepairFacts = mended(network, workspace(network.trained.store), LIMITS, rejected=False).facts
    assert (facts.float_nodes, facts.nothing_to_gain) == ((), "floats at the inputs save less than 3%")
