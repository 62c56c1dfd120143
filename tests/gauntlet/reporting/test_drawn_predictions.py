"""The page shows the drawing of the winner's predictions, else the reference's, and nothing where there is none."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.run_report import RunReport
from gauntlet.reporting.html_report import render_html

WIDTH, HEIGHT = 1232, 600


@pytest.fixture
def drawn(passed: RunReport, tmp_path: Path) -> RunReport:
    """A run whose reference and winner have drawings, one darker than the other, in the store below `tmp_path`."""
    levels = {("evaluate", None): 10, ("accuracy", passed.winner): 99}
    stages = tuple(
        entry.replace(artifacts={"drawings": drawing(tmp_path, levels[entry.stage, entry.candidate])})
        if (entry.stage, entry.candidate) in levels
        else entry
        for entry in passed.stages
    )
    return passed.replace(stages=stages)


def drawing(folder: Path, level: int) -> Artifact:
    path = folder / "drawings.jpg"
    Image.fromarray(np.full((HEIGHT, WIDTH, 3), level, np.uint8)).save(path)
    return Store(folder).put(path)


def test_winner_s_drawing_is_embedded(drawn: RunReport, tmp_path: Path) -> None:
    page = render_html(drawn, tmp_path)
    assert page.count("data:image/jpeg;base64,") == 1
    assert f"on which {drawn.winner} loses most against the FP32 model" in page


def test_reference_s_drawing_is_embedded_where_the_winner_has_none(drawn: RunReport, tmp_path: Path) -> None:
    page = render_html(drawn.replace(winner="fp32"), tmp_path)
    assert "that the source model predicts worst" in page
    assert page.count("data:image/jpeg;base64,") == 1


def test_there_is_no_section_where_nothing_was_drawn_or_the_file_is_gone(
    drawn: RunReport, passed: RunReport, tmp_path: Path
) -> None:
    assert 'id="drawings"' not in render_html(passed, tmp_path)
    assert 'id="drawings"' not in render_html(drawn, tmp_path / "cleaned")


@pytest.mark.browser
@pytest.mark.parametrize("width_px", [1280, 390])
def test_drawing_is_loaded_and_fits(browser, drawn: RunReport, tmp_path: Path, width_px: int) -> None:
    page = browser.new_page(viewport={"width": width_px, "height": 900})
    page.set_content(render_html(drawn, tmp_path))
    box = page.evaluate(
        "(() => { const i = document.querySelector('img.sheet'); return [i.naturalWidth, i.naturalHeight, "
        "i.getBoundingClientRect().right, i.width / i.height] })()"
    )
    assert box[:2] == [WIDTH, HEIGHT]
    assert box[2] <= width_px
    assert box[3] == pytest.approx(WIDTH / HEIGHT, rel=0.02)
    page.close()
