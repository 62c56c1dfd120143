"""The curves of a training, the times of operators, and scores: drawn where there is something to see."""

import math
import re
from pathlib import Path

import numpy as np
from PIL import Image
from recorded_facts import with_facts

from gauntlet.core.run_report import RunReport
from gauntlet.frameworks.training import EpochMetrics
from gauntlet.metrics.class_curves import Ranking
from gauntlet.metrics.confidence_calibration import ConfidenceCalibration
from gauntlet.reporting.html_report import render_html
from tasks.benchmark.facts import BenchmarkFacts, CandidateProfile
from wings.drawings import operator_times, training_curves
from wings.drawings.score_plots import save_calibration, save_ranking


def epoch(number: int, loss: float, accuracy: float = 0.5, **more: float) -> EpochMetrics:
    known = {"epoch": number, "train_loss": loss, "validation_loss": loss, "learning_rate": 0.1}
    return EpochMetrics.model_validate({**known, "validation_accuracy": accuracy, **more})


def lines(svg: str) -> list[str]:
    """The paths of the first curve."""
    return re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--c0\); stroke-width: 2', svg)


def test_one_epoch_is_no_curve() -> None:
    assert training_curves.draw([]) is None
    assert training_curves.draw([epoch(1, 2.0)]) is None


def test_curves_tell_where_they_begin_and_end() -> None:
    svg = training_curves.draw([epoch(1, 2.0, 0.25), epoch(2, 1.0, 0.75)])
    assert "Validation accuracy: 25.0 % after the first epoch, 75.0 % after the last" in svg
    assert "Validation mAP" in str(training_curves.draw([epoch(1, 2.0, 0.25), epoch(2, 1.0, 0.75)], metric="map"))
    assert len(lines(svg)) == 3
    more = [epoch(n, 1.0, train_accuracy=0.1 * n) for n in (1, 2)]
    assert "Training accuracy: 10.0 % after the first epoch, 20.0 % after the last" in str(training_curves.draw(more))
    assert len(lines(str(training_curves.draw(more)))) == 4


def test_a_curve_is_broken_where_a_value_is_no_number() -> None:
    whole = training_curves.draw([epoch(n, 1.0 / n) for n in range(1, 6)])
    for odd in (math.nan, math.inf, 1e300):
        broken = training_curves.draw([epoch(n, odd if n == 3 else 1.0 / n) for n in range(1, 6)])
        assert [lines(svg)[0].count("M") for svg in (whole, broken)] == [1, 2]


def test_page_says_what_the_training_started_from_and_what_was_replaced(passed: RunReport) -> None:
    started = {"source": "half.pt", "replaced": ["fc.weight", "fc.bias"], "trained_parameters": 650}
    change = {"metric": "accuracy", "n": 60, "before": 0.75, "after": 0.8833, "lost": 1, "gained": 9}
    change |= {"drop": -0.13, "low": -0.2, "high": -0.05, "mcnemar_p": 0.02}
    more = {"initial_weights": started, "fine_tuning": change}
    stages = tuple(with_facts(entry, **more) if entry.stage == "train" else entry for entry in passed.stages)
    html = " ".join(render_html(passed.replace(stages=stages)).split())
    assert "It started from the weights half.pt; 650 parameters were trained, the others frozen." in html
    assert "The head of another number of classes (fc.weight, fc.bias) was replaced by a new one." in html
    assert "Accuracy on the 60 validation samples: 0.7500 before, 0.8833 now; 1 lost, 9 gained." in html
    assert "It started from" not in render_html(passed)


def profile(candidate: str, **operators: float) -> CandidateProfile:
    total = sum(operators.values())
    times = [{"operator": name, "nodes": 2, "ms": ms, "share": ms / total} for name, ms in operators.items()]
    slowest = [{"node": "/conv1/Conv", "operator": "Conv", "provider": "CPU", "ms": 1.5, "share": 0.4}]
    shares = {"layout_share": 0.1, "qdq_share": 0.02, "non_kernel_share": 0.05}
    told = {"calls": 20, "call_ms": total, "operators": times, "slowest": slowest, **shares}
    known = {"candidate": candidate, "target": "ort-cpu", "batch": 1, "unprofiled_ms": 1.0, "profile": told}
    return CandidateProfile.model_validate(known)


def test_operators_come_by_the_longest_time_in_any_profile() -> None:
    known = [profile("fp32", Conv=4.0, Add=1.0, Flatten=0.0), profile("int8", QLinearConv=1.5, Add=0.5)]
    found = operator_times.slowest(known)
    assert list(found) == ["Conv", "QLinearConv", "Add"]
    assert [(number, one.ms) for number, one in found["Add"]] == [(0, 1.0), (1, 0.5)]


def test_chart_stays_small_when_there_are_many_operators() -> None:
    many = profile("fp32", **{f"Op{number}": 1.0 + number for number in range(40)})
    assert list(operator_times.slowest([many])) == [
        f"Op{number}" for number in range(39, 39 - operator_times.MAX_OPERATORS, -1)
    ]


def test_nothing_is_drawn_when_nothing_was_profiled() -> None:
    missing = profile("fp32", Conv=1.0).replace(profile=None)
    assert BenchmarkFacts.model_construct(profiles=(missing,)).section() is None


def test_page_shows_where_the_time_goes_when_the_race_profiled(passed) -> None:
    assert 'id="kernels"' not in render_html(passed)
    profiles = (profile("fp32", Conv=4.0), profile("<b>int8", QLinearConv=1.0))
    stages = tuple(with_facts(s, profiles=profiles) if s.stage == "benchmark" else s for s in passed.stages)
    page = render_html(passed.replace(stages=stages))
    assert 'id="kernels"' in page
    assert "Conv: fp32, batch 1: 4.00 ms, 100.0 %, 2 nodes" in page
    text = " ".join(re.sub(r"<[^>]+>", " ", page[page.index('id="kernels"') :]).split())
    assert "fp32: slowest nodes; layout 10.0 %, Q/DQ 2.0 %, outside of kernels 5.0 %" in text
    assert "/conv1/Conv Conv CPU 1.50 ms 40.0 %" in text
    assert "<b>int8" not in page
    profiles += (profile(passed.winner, QLinearConv=2.0),)
    stages = tuple(with_facts(s, profiles=profiles) if s.stage == "benchmark" else s for s in passed.stages)
    page = render_html(passed.replace(stages=stages))
    assert "The reference and the winner, by" in page
    assert "int8: slowest nodes" not in page.replace(f"{passed.winner}: slowest", "")


def test_page_says_who_was_faster_when_a_candidate_left_the_race_early(passed) -> None:
    first, *others = passed.candidates
    loser = others[-1]
    row = passed.candidates[1].benchmark[0].replace(verdict="slower", batch=8)
    slower = row.replace(stopped_after_round=3, stopped_for="static-u8s8", stopped_as="slower")
    deciding = row.replace(batch=1, verdict="not resolved", more_rounds=17)
    page = render_html(passed.replace(candidates=(first, *others[:-1], loser.replace(benchmark=(deciding, slower)))))
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "Batch 8 on ort-cpu: dropped after round 3, slower than static-u8s8." in text
    assert "], dropped after round 3 (slower than static-u8s8), median" in page
    assert "ms, dropped " in text  # its speed-up, over fp32, may be above 1


def facts(report: RunReport) -> tuple[ConfidenceCalibration, Ranking]:
    found = report.stage("evaluate").facts
    return ConfidenceCalibration.model_validate(found["calibration"]), Ranking.model_validate(found["ranking"])


def test_page_shows_calibration_ranking_verdict_folds_and_near_duplicates(passed: RunReport) -> None:
    html = render_html(passed)
    assert "Expected calibration error" in html
    assert "fitted on 360 samples of the validation split" in html
    assert len(re.findall(r'aria-label="Reliability diagram: expected calibration error', html)) == 1
    assert len(re.findall(r'aria-label="ROC and precision-recall curves: macro AUC', html)) == 1
    assert "<strong>Good fit:</strong> accuracy 1.0000 on training samples" in html
    assert "2 parts: accuracy 98.0 %, 95 % interval 96.0 % to 100.0 %, worst part 97.0 %" in html
    assert "train[17]" in html
    assert "Avg. precision" in html


def test_files_are_images_with_the_curves_colors(passed: RunReport, tmp_path: Path) -> None:
    calibration, ranking = facts(passed)
    for path in (
        save_calibration(calibration, tmp_path / "reliability.png"),
        save_ranking(ranking, tmp_path / "curves.png"),
    ):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        assert (pixels == (0x24, 0x57, 0xC5)).all(axis=1).any()
        assert path.stat().st_size < 200_000
