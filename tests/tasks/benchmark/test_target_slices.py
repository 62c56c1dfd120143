"""What a target computes otherwise is refused, unless the run's own limits judge it there."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from validated_target import OtherFile

from gauntlet.core.signature import signature_from_graph
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.race.contender import Plan
from gauntlet.race.target_examiner import TargetExaminer
from tasks.accuracy import AccuracyConfig
from tasks.benchmark.other_targets import examine_candidates
from tasks.benchmark.target_accuracy import TargetAccuracy

pytestmark = pytest.mark.slow
PLAN = Plan(batch_sizes=(1,), rounds=6, block_ms=1, threads=1, timeout_s=60, restarts=False)


@pytest.mark.parametrize(
    ("min_sqnr_db", "reason"), [(None, "target.slices_sqnr"), (6, ""), (60, "accuracy.min_sqnr_db")]
)
def test_small_column_that_a_target_computes_otherwise_is_refused_or_judged_by_the_limits_of_the_run(
    tmp_path: Path, min_sqnr_db: float | None, reason: str
) -> None:
    x, weights = (np.random.default_rng(0).standard_normal(size, dtype=np.float32) for size in ((64, 8), (8, 10)))
    weights[:, 0] /= 100
    other = np.hstack([weights[:, :1] * 1.3, weights[:, 1:]])
    rounding = "<float scale = {0.05}, int8 zero = {0}>"
    nodes = "q = QuantizeLinear(x, scale, zero) d = DequantizeLinear(q, scale, zero)"
    for name, w, start, end in (
        ("fp32", weights, "", "Identity(x)"),
        ("int8", weights, nodes, "Identity(d)"),
        ("other-int8", other, nodes, "Identity(d)"),
    ):
        text = f"net (float[batch,8] x) => (float[batch,10] y) {rounding} {{ {start} i = {end} y = MatMul(i, w) }}"
        proto = onnx_text.model(text, {"w": w}, opset=13)
        signature_from_graph(proto).replace(labels=tuple(map(str, range(10)))).write(proto)
        onnx.save(proto, tmp_path / f"{name}.onnx")
    truth, labels = x @ weights, (x @ weights).argmax(axis=1)
    real = GoldenCase({"x": x[:2]}, {"y": truth[:2]})
    Golden({"real": real}, {"y": truth}, labels=labels).save(tmp_path / "golden.npz")
    np.savez(tmp_path / "test.npz", x=x, labels=labels)
    np.savez(tmp_path / "in.npz", x=x)
    models = {name: tmp_path / f"{name}.onnx" for name in ("fp32", "int8")}
    examiner = TargetExaminer.from_models(models, tmp_path / "in.npz", PLAN)
    limits = AccuracyConfig(min_sqnr_db=min_sqnr_db) if min_sqnr_db else None
    accuracy = TargetAccuracy(limits, tmp_path / "golden.npz", tmp_path / "test.npz") if limits else None
    result = examine_candidates(examiner, OtherFile(prefix="other-"), accuracy)["int8"]
    assert (result.status, result.reason.split(":")[0]) == ("failed" if reason else "measured", reason)
