"""The page that says where each metric is names those that a run has, in MLflow and in its report."""

import json
import re
from pathlib import Path

from reported_runs import raced

from configs.schema import REFERENCE
from flows.tracking.metric_names import candidate_metrics, class_metrics
from gauntlet.core.run_report import CandidateEntry, RunReport
from gauntlet.metrics.class_curves import RankedClassScore
from gauntlet.metrics.class_scores import score_metrics
from gauntlet.metrics.confidence_calibration import CalibrationScores
from tasks.evaluate import EvaluateFacts

PROJECT = Path(__file__).parents[3]
PAGE = (PROJECT / "docs" / "architecture.md").read_text().partition("## Where each metric is")[2]
ROWS = [row.strip("|").split("|") for row in re.findall(r"^\| [^|]+\|[^|]+\|[^|]+\|$", PAGE, re.MULTILINE)[1:]]


def names(cells: str) -> set[str]:
    return {name for name in re.findall(r"`([^`]+)`", cells) if "..." not in name}


def test_names_in_mlflow_are_those_of_a_candidate_and_its_gates() -> None:
    row = raced(1, 1.0, 2.0, 1.9, 2.1, "faster")
    row = row.replace(mean_ms=1.0, p90_ms=1.0, p99_ms=1.0, images_per_second=9.0, peak_rss_bytes=9)
    known_values = {"reason": "", "size_bytes": 9, "sqnr_db": 9.0, "benchmark": (row,)}
    entry = CandidateEntry(name=REFERENCE, parent=None, status="accepted", **known_values)  # type: ignore[arg-type]
    score = RankedClassScore(label="3", precision=1, recall=1, f1=1, images=1, roc_auc=1, average_precision=1)
    known = {*candidate_metrics(entry, score_metrics({"accuracy": 1.0, "map": 1.0}))}
    known |= {*class_metrics(EvaluateFacts.model_construct(classes=(score,)))}
    known |= {*CalibrationScores.model_construct(ece=0, brier_score=0, log_loss=0).metrics(calibrated=False)}
    golden = (PROJECT / "tests" / "golden" / "digits-small-cnn.json").read_text()
    asked = set().union(*(names(row[1]) for row in ROWS))
    gates = {name for name in asked if name.startswith("gate.")}
    assert len(asked) > 15
    assert not asked - known - gates
    assert all(f'"{name.removeprefix("gate.")}' in golden for name in gates)


def test_places_in_the_report_are_fields_of_its_schema() -> None:
    schema = RunReport.model_json_schema(mode="serialization")

    def reached(path: str) -> bool:
        part = schema
        for name in path.split("."):
            if name not in part["properties"]:
                return False
            inner = re.search(r'"#/\$defs/(\w+)"', json.dumps(part["properties"][name]))
            part = schema["$defs"][inner[1]] if inner else {"properties": {}}
        return True

    places = set().union(*(names(row[2]) for row in ROWS))
    assert len(places) > 6
    assert not {place for place in places if not reached(place)}
    assert not reached("candidates.nowhere")
