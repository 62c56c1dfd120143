"""What `evaluate` measures of a real run is in MLflow, in the bundle, and in the bundle's predictions."""

from pathlib import Path

import numpy as np
import pytest
from bundles import png
from mlflow import MlflowClient
from sklearn.datasets import load_digits

import gauntlet
from flows.record.home import Home
from gauntlet.core.run_report import RunReport
from gauntlet.problems.classification import ClassPrediction
from tasks.evaluate import EvaluateFacts


@pytest.fixture
def facts(finished: RunReport) -> EvaluateFacts:
    return EvaluateFacts.model_validate(finished.stage("evaluate").facts)


def test_mlflow_has_calibration_and_ranking_by_legal_names(
    finished_home: Path, finished: RunReport, facts: EvaluateFacts
) -> None:
    client = MlflowClient(Home(finished_home / ".gauntlet").mlflow_uri)
    experiment = client.get_experiment_by_name("digits-small-cnn")
    runs = {r.info.run_name: r.data.metrics for r in client.search_runs([experiment.experiment_id])}
    expected = {
        "quality.ece": facts.calibration.before.ece,
        "quality.log_loss": facts.calibration.before.log_loss,
        "quality.calibrated.ece": facts.calibration.after.ece,
        "quality.calibrated.brier_score": facts.calibration.after.brier_score,
        "quality.temperature": facts.calibration.temperature,
        "quality.macro_roc_auc": facts.ranking.macro_roc_auc,
        "quality.macro_average_precision": facts.ranking.macro_average_precision,
    }
    for metrics in (runs[finished.run_id], runs["digits-small-cnn-fp32"]):
        assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    candidate = finished.stage("accuracy", "static-u8s8")
    measured = runs["digits-small-cnn-static-u8s8"]["quality.calibrated.ece"]
    assert measured == pytest.approx(candidate.facts["calibration"]["ece"])
    assert candidate.facts["temperature"] == facts.temperature
    first = facts.classes[0]
    assert runs["digits-small-cnn-fp32"][f"class.{first.label}.roc_auc"] == pytest.approx(first.roc_auc)


def test_bundle_states_the_temperature_and_its_predictions_are_calibrated(
    finished_home: Path, finished: RunReport, facts: EvaluateFacts
) -> None:
    entry = finished.stage("package")
    predictor = gauntlet.load(Home(finished_home / ".gauntlet").store.path(entry.artifacts["bundle"]))
    assert predictor.contract.temperature == facts.calibration.temperature
    found = predictor.predict([png(number) for number in range(40)])
    assert all(isinstance(one, ClassPrediction) for one in found)
    best = [one.top[0] for one in found if isinstance(one, ClassPrediction)]
    assert np.mean([one.label == str(truth) for one, truth in zip(best, load_digits().target, strict=False)]) > 0.9
    assert all(one.calibrated is not None and 0 < one.calibrated <= 1 for one in best)
    assert any(one.calibrated != one.confidence for one in best)
    pytest.importorskip("wings.documents")
    card = (predictor.bundle.folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: onnx\n")
    assert "macro ROC AUC of the source network" in card
    assert "calibrated by the temperature" in card
