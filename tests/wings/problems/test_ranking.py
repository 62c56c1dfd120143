"""Rankers are judged by the order of their scores within groups, quantiles by their pinball loss."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pandas as pd
import pytest
from problem_samples import LEVELS, problem, sample

from configs.brought_model import infer_config
from frameworks.boosting.training import BoostingModel
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.problems import problem_of
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy
from tasks.evaluate import EvaluateConfig, evaluate
from wings.python_api.objects import samples_file

GROUPS, SIZE = 60, 12


def queries(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return scores, shape (n, 1), that order the samples of a group nearly right, and the truth, in random order."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(GROUPS), SIZE))
    relevance = rng.integers(0, 5, len(group))
    level = rng.normal(0, 20, GROUPS)[group]  # says nothing of the order within a group
    scores = relevance + level + rng.normal(0, 0.5, len(group))
    return scores.astype(np.float32)[:, None], np.stack([relevance, group], axis=1).astype(np.float64)


def test_ndcg_is_that_of_scikit_learn_also_with_equal_scores() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    scores, truth = queries()
    scores = np.round(scores / 2)
    expected = {"ndcg_at_10": [], "ndcg": []}
    for group in range(GROUPS):
        rows = truth[:, 1] == group
        gain, order = 2 ** truth[rows, 0][None] - 1, scores[rows, 0][None]
        expected["ndcg_at_10"].append(metrics.ndcg_score(gain, order, k=10))
        expected["ndcg"].append(metrics.ndcg_score(gain, order))
    assert problem("ranking").score(scores, truth) == pytest.approx({k: np.mean(v) for k, v in expected.items()})


@pytest.mark.parametrize("broken", [0.0, np.nan])
def test_scores_that_are_all_the_same_do_not_keep_the_order_of_the_file(broken: float) -> None:
    truth = np.stack([np.tile(np.arange(12)[::-1] > 9, 5), np.repeat(np.arange(5), 12)], axis=1).astype(float)
    assert problem("ranking").score(np.full((60, 1), broken), truth)["ndcg"] < 0.6


def test_group_of_equal_relevance_does_not_count() -> None:
    truth = np.array([[0, 0], [1, 0], [2, 1], [2, 1], [0, 2]], float)
    scores = np.array([[1], [0], [1], [2], [3]], np.float32)
    assert problem("ranking").score(scores, truth)["ndcg"] == pytest.approx(1 / np.log2(3))


@pytest.mark.parametrize("shuffled", [False, True])
def test_scores_shuffled_within_groups_are_refused(shuffled: bool) -> None:
    scores, truth = queries()
    rng, after = np.random.default_rng(1), scores + np.float32(1e-3)
    if shuffled:
        for group in range(GROUPS):
            rows = np.flatnonzero(truth[:, 1] == group)
            after[rows] = after[rng.permutation(rows)]
    facts = compare_accuracy(Golden({}, {"y": scores}, truth), problem("ranking", ()).signature, {"y": after})
    checks = {check.name: check for check in accuracy_checks(AccuracyLimits(min_sqnr_db=-100), facts)}
    assert (facts.metric, facts.change.n, facts.labels_fit) == ("ndcg_at_10", GROUPS, True)
    assert checks["accuracy.max_accuracy_drop"].blocks == shuffled


def test_candidate_of_a_ranker_without_labels_is_judged_by_its_scores() -> None:
    scores = queries()[0]
    lost = Golden({}, {"y": scores}), problem("ranking", ()).signature, {"y": scores[::-1].copy()}
    checks = {check.name: check for check in accuracy_checks(AccuracyLimits(min_sqnr_db=-100), compare_accuracy(*lost))}
    assert checks["accuracy.max_accuracy_drop"].blocks


def test_labels_that_no_order_can_fit_are_refused() -> None:
    scores, truth = np.zeros((4, 1)), np.array([[1, 0], [1, 0], [2, 1], [2, 1]], float)
    with pytest.raises(StageError, match=r"no group of the test split has samples of different relevance.* Fix:"):
        problem("ranking").loss(scores, scores, truth)
    with pytest.raises(StageError, match="a relevance of -1; expected 0"):
        problem("ranking").score(scores, truth - [2, 0])


def test_groups_of_a_file_become_part_of_the_truth(tmp_path: Path) -> None:
    scores, truth = queries()
    arrays = {"x": scores, "labels": truth[:, 0].astype(np.int64)}
    np.savez(tmp_path / "samples.npz", **arrays, split_groups=np.char.add("q", truth[:, 1].astype(int).astype(str)))
    splits = NpzArrays(path=tmp_path / "samples.npz", task="ranking").load().splits
    relevance = dict(zip(scores[:, 0], truth[:, 0], strict=True))
    for split in splits.values():
        assert [relevance[x] for x in split.take(slice(None))["x"][:, 0]] == split.labels[:, 0].tolist()
    groups = [set(split.labels[:, 1]) for split in splits.values()]
    assert len(set.union(*groups)) == sum(map(len, groups)) == GROUPS
    np.savez(tmp_path / "samples.npz", **arrays)
    with pytest.raises(StageError, match=r"labels of a ranking need groups. Fix: add the array split_groups"):
        NpzArrays(path=tmp_path / "samples.npz", task="ranking").load()


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_ranker_is_judged_by_the_groups_of_a_table(library: str, tmp_path: Path, workspace: Any) -> None:
    trees, rng = pytest.importorskip(library), np.random.default_rng(0)
    group = np.repeat(np.arange(40), 8)
    table = pd.DataFrame(rng.random((320, 3)), columns=["price", "age", "clicks"])
    relevance = (4 * table["price"]).astype(int)
    if library == "lightgbm":
        ranker, file = trees.LGBMRanker(n_estimators=5, verbose=-1), tmp_path / "ranker.txt"
        ranker.fit(table, relevance, group=np.bincount(group)).booster_.save_model(file)
    else:
        ranker, file = trees.XGBRanker(n_estimators=5), tmp_path / "ranker.json"
        ranker.fit(table, relevance, qid=group).get_booster().save_model(file)
    table.assign(label=relevance, query=group).sample(frac=1, random_state=0).to_csv(tmp_path / "t.csv", index=False)
    samples = Path(samples_file(tmp_path / "t.csv", str(file), Store(tmp_path / "store"), group="query"))
    config = infer_config(file, samples, None, {}).values
    dataset = NpzArrays.model_validate(config["data"]).load()
    report = BoostingModel(model=file).fit(dataset.splits, dataset.signature, workspace())
    facts = evaluate(
        EvaluateConfig(min_score=0.9),
        workspace(),
        predictions=report.artifacts["predictions"],
        signature=report.facts.signature,
    )
    assert facts.facts.metric == "ndcg_at_10" and facts.facts.accuracy > 0.95
    assert all(check.passed for check in facts.checks)


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
