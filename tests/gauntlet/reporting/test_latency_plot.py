"""The picture of latencies is a picture, and refuses another name."""

from pathlib import Path

import pytest
from PIL import Image

from gauntlet.core.errors import ConfigError
from gauntlet.reporting.latency_plot import plot_latency, require_image

LINES = {f"model on target-{n}": [(1, 1.0 + n, 0.9 + n, 1.2 + n), (32, 9.0, 8.0, 11.0)] for n in range(12)}


def test_plot_is_written_in_a_colour_a_line(tmp_path: Path) -> None:
    plot_latency(LINES, tmp_path / "p.png", "rounds \x1b[31m")
    with Image.open(tmp_path / "p.png") as picture:
        assert len(picture.getcolors(1 << 20) or ()) > 12


def test_plot_is_refused_when_the_name_is_no_picture_s(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.png or \.svg"):
        require_image(tmp_path / "p.pdf")
    with pytest.raises(ConfigError, match="does not exist"):
        require_image(tmp_path / "absent" / "p.png")
