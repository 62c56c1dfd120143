"""Quantiles are judged by their pinball loss."""

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from problem_samples import LEVELS, problem, sample

from configs.brought_model import infer_config
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.problems import problem_of
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy

MODEL = """
<ir_version: 9, opset_import: ["" : 18]>
bounds (float[batch, 1] x) => (float[batch, 3] y)
<float[3] b = {-1.28, 0, 1.28}> { y = Add(x, b) }
"""


def test_score_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    outputs, truth = sample("quantiles", np.random.default_rng(0))
    scores = problem("quantiles").score(outputs, truth)
    levels = [*enumerate(map(float, LEVELS))]
    d2 = np.mean([metrics.d2_pinball_score(truth, outputs[:, j], alpha=level) for j, level in levels])
    loss = np.mean([metrics.mean_pinball_loss(truth, outputs[:, j], alpha=level) for j, level in levels])
    assert scores["d2_pinball"] == pytest.approx(d2) and scores["pinball_loss"] == pytest.approx(loss)
    assert scores["coverage_error"] < 0.1 and scores["crossed"] == 0


@pytest.mark.parametrize("crossed", [False, True])
def test_crossed_quantiles_are_refused(crossed: bool) -> None:
    outputs, truth = sample("quantiles", np.random.default_rng(1), 300)
    after = outputs[:, [2, 1, 0]] if crossed else outputs + np.float32(1e-3)
    facts = compare_accuracy(Golden({}, {"y": outputs}, truth), problem("quantiles").signature, {"y": after})
    checks = {check.name: check for check in accuracy_checks(AccuracyLimits(min_sqnr_db=-100), facts)}
    assert (facts.metric, facts.labels_fit, facts.scores["crossed"]) == ("d2_pinball", True, int(crossed))
    assert checks["accuracy.max_accuracy_drop"].blocks == crossed


def test_candidate_without_truth_is_judged_by_its_values() -> None:
    outputs = sample("quantiles", np.random.default_rng(2), 300)[0]
    signature = problem("quantiles").signature
    facts = compare_accuracy(Golden({}, {"y": outputs}), signature, {"y": outputs[::-1].copy()})
    assert "R²" in facts.differences and facts.expected_loss.drop > 0.1


@pytest.mark.parametrize("kind", ["i8", "f4"])
def test_names_of_values_are_the_levels(kind: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), model := tmp_path / "model.onnx")
    x = np.arange(100)[:, None].astype(np.float32)
    np.savez(samples := tmp_path / "samples.npz", x=x, labels=np.arange(100).astype(kind))
    (labels := tmp_path / "levels.txt").write_text("\n".join(LEVELS))
    dataset = NpzArrays.model_validate(infer_config(model, samples, labels, {}, task="quantiles").values["data"]).load()
    assert (dataset.signature.task, dataset.signature.labels) == ("quantiles", LEVELS)
    labels.write_text("0.1\n0.9")
    with pytest.raises(ConfigError, match="no output has the form of the problem quantiles"):
        infer_config(model, samples, labels, {}, task="quantiles")


@pytest.mark.parametrize("labels", [("low", "high"), ("0.9", "0.1"), ("0", "0.5"), ("nan", "0.5")])
def test_names_that_are_no_levels_are_refused(labels: tuple[str, ...]) -> None:
    signature = problem("regression").signature.replace(task="quantiles", labels=labels)
    with pytest.raises(StageError, match="not levels of quantiles, which are increasing numbers between 0 and 1"):
        problem_of(signature)
