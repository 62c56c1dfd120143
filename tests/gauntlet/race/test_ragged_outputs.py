"""Lists whose length depends on the sample are compared by length and content, in every gate and before the race."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from validated_target import States, failed, look

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.ragged import joined_samples
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import Tolerances, compare_outputs
from gauntlet.metrics.output_noise import output_noise
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy
from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.precision import worst_sqnr_db
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

pytestmark = pytest.mark.slow
SAMPLES = {"x": np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)}
ARRAYS = Signature(task="arrays", inputs=(), outputs=(), layout="none")
LISTS = {
    "floats": "(float[found] kept) { kept = Compress(moved, chosen) }",
    "places": "(int64[2,found] places) { places = NonZero(large) }",
    "tokens": "(int64[1,found] tokens) { all = NonZero(large) tokens = Slice(all, first, last, rows) }",
}
FAULTS = {"cut short": ("above", 0.5), "too long": ("above", -0.5), "other values": ("turn", 1)}


def model(kind: str, **changed: float) -> onnx.ModelProto:
    """A model that returns what exceeds a limit."""
    head, nodes = LISTS[kind].split(" {")
    value = {"above": 0.0, "turn": 0.0} | changed
    weights = np.roll(np.random.default_rng(1).normal(size=(8, 12)), int(value["turn"]), axis=1)
    return onnx_text.model(
        f"""lists (float[1,8] x) => {head}
        <float[8,12] w, float above = {{{value["above"]}}}, int64[1] flat = {{-1}}, int64[1] first = {{1}},
         int64[1] last = {{2}}, int64[1] rows = {{0}}>
        {{
            y = MatMul(x, w)
            large = Greater(y, above)
            chosen = Reshape(large, flat)
            moved = Reshape(y, flat)
            {nodes}""",
        {"w": weights.astype(np.float32)},
    )


def outputs_of(proto: onnx.ModelProto) -> NamedArrays:
    return batched_inference(open_session(proto.SerializeToString()), SAMPLES).run(8)


def refusals(proto: onnx.ModelProto, expected: NamedArrays) -> list[str]:
    """Return the checks of accuracy that refuse a candidate."""
    comparison = compare_accuracy(Golden({}, expected), ARRAYS, outputs_of(proto))
    return [check.name for check in accuracy_checks(AccuracyLimits(), comparison) if check.blocks]


@pytest.mark.parametrize("kind", LISTS)
def test_same_lists_pass_and_others_are_refused_by_every_gate(tmp_path: Path, kind: str) -> None:
    right, limits = model(kind), Tolerances(batch_sizes=(1, 7))
    expected = outputs_of(right)
    cases = {"real": GoldenCase(SAMPLES, expected)}
    paths = {name: tmp_path / f"{name}.onnx" for name in ("right", *FAULTS)}
    onnx.save(right, paths["right"])
    np.savez(tmp_path / "x.npz", **SAMPLES)
    exact = ExpectedOutputs.of(paths["right"], tmp_path / "x.npz", 60)
    assert not refusals(right, expected)
    assert compare_outputs(limits, open_session(paths["right"]), cases).rows[0].within(limits)
    assert not failed(look(paths["right"], States(), tmp_path / "x.npz", exact))
    for name, (part, value) in FAULTS.items():
        broken = model(kind, **{part: value})
        onnx.save(broken, paths[name])
        assert refusals(broken, expected), name
        compared = compare_outputs(limits, open_session(paths[name]), cases)
        assert compared.failures or not all(row.within(limits) for row in compared.rows), name
    assert failed(look(paths["cut short"], States(), tmp_path / "x.npz", exact))


def test_share_of_samples_with_another_length_is_limited() -> None:
    expected = outputs_of(model("floats"))["kept"]
    for lost, refused in ((0, False), (1, True)):  # of 40 samples, at most 2 %
        actual = expected.copy()
        for sample in range(lost):
            actual[sample, np.count_nonzero(~np.isnan(actual[sample])) - 1] = np.nan
        comparison = compare_accuracy(Golden({}, {"kept": expected}), ARRAYS, {"kept": actual})
        checks = {check.name: check for check in accuracy_checks(AccuracyLimits(), comparison)}
        assert checks["accuracy.min_agreement"].blocks is refused
        assert "share of samples of equal length" in checks["accuracy.min_agreement"].detail


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_lists_that_are_empty_for_every_sample_prove_nothing(dtype: type) -> None:
    nothing = {"kept": np.zeros((40, 0), dtype)}
    checks = accuracy_checks(AccuracyLimits(), compare_accuracy(Golden({}, nothing), ARRAYS, nothing))
    refused = {check.name: check.detail for check in checks if check.blocks}
    assert "samples for which the FP32 model returns anything in output 'kept'" in refused["accuracy.min_agreement"]


def cases_of_nan() -> dict[str, tuple[Array, Array]]:
    fixed = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    ragged = joined_samples([fixed[i : i + 1, : 3 + i % 4] for i in range(50)])
    last, middle = fixed.copy(), ragged.copy()
    last[7, -1] = middle[7, 1] = np.nan
    return {"last of a fixed output": (last, fixed), "middle of a list": (middle, ragged)}


@pytest.mark.parametrize("where", cases_of_nan())
def test_value_that_is_no_number_is_not_taken_for_padding(where: str) -> None:
    actual, expected = cases_of_nan()[where]
    assert np.isnan(output_noise(actual, expected).sqnr_db)
    assert not worst_sqnr_db([actual], [expected]) > 0
    assert worst_sqnr_db([expected], [expected]) == np.inf
