"""The reliability diagram and the curves: on the page in its colors, as files in their own."""

import re
from pathlib import Path

import numpy as np
from PIL import Image

from gauntlet.core.run_report import RunReport
from gauntlet.metrics.class_curves import Ranking
from gauntlet.metrics.confidence_calibration import ConfidenceCalibration
from gauntlet.reporting.html_report import render_html
from wings.drawings.score_plots import save_calibration, save_ranking


def facts(report: RunReport) -> tuple[ConfidenceCalibration, Ranking]:
    entry = report.stage("evaluate")
    assert entry is not None
    found = entry.facts
    return ConfidenceCalibration.model_validate(found["calibration"]), Ranking.model_validate(found["ranking"])


def test_page_shows_calibration_ranking_verdict_folds_and_near_duplicates(passed: RunReport) -> None:
    html = render_html(passed)
    assert "Expected calibration error" in html
    assert "fitted on 360 images of the validation split" in html
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
