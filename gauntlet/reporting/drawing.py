"""Embed Matplotlib figures in a page as SVG: text stays text, colors follow the theme, and ids are unique."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from gauntlet.core.kinds import kinds
from gauntlet.reporting.text_format import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_PX = 880
"""Full width of a figure; one unit of its drawing is one pixel."""
NARROW_PX = 385
"""Width of a figure that a telephone shows whole, with readable labels."""

THEME = ("ink", "muted", "line", "paper", "c0", "c1", "c2", "c3", "c4", "c5")
"""The page's CSS variables. Each is drawn in a placeholder color, which `embed` replaces by the variable."""
INK, MUTED, LINE, PAPER, *SERIES = (f"#0000{number:02x}" for number in range(1, len(THEME) + 1))
MARKERS = "osD^vPX"
"""One more than the colors, so that no two of 42 series look the same."""

STYLE: dict[Any, Any] = {
    "font.size": 12,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 12,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "xtick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "svg.fonttype": "none",
    "svg.hashsalt": "onnx-gauntlet",
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
NAMESPACES = {"": "http://www.w3.org/2000/svg", "xlink": "http://www.w3.org/1999/xlink"}
VARIABLE = re.compile(r"--(\w+): (#[0-9a-f]{6})")
USED_VARIABLE = re.compile(r"var\(--(\w+)\)")
PLACEHOLDER = re.compile(r"#0000([0-9a-f]{2})")


def drawn(name: str, *values: Any) -> Markup | None:
    """Return what an installed package draws (entry point `drawing.NAME`); None where nothing does."""
    draw: Callable[..., Markup | None] = kinds("drawing").get(name, lambda *_: None)
    return draw(*values)


@contextmanager
def themed(height_px: float, width_px: float = WIDTH_PX) -> Iterator["Figure"]:
    """Yield a figure with the page's style, which applies until the context ends."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width_px / 72, height_px / 72), layout="constrained")  # 72 units an inch


@contextmanager
def image_file(path: Path, width_in: float, height_in: float, dpi: int) -> Iterator["Figure"]:
    """Yield a figure, and write it when the context ends; names in it are plain text, and no formulas."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs that the font lacks
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        yield figure
        figure.savefig(path, dpi=dpi, metadata={"Software": None} if path.suffix == ".png" else None)


def embed(figure: "Figure", name: str, text: str) -> Markup:
    """Return a figure from `themed` as an SVG element; `name` is the prefix of its ids, `text` its description."""
    for artist in figure.findobj():
        artist.set_clip_on(False)  # values outside are drawn at the border
    for axes in figure.axes:
        axes.patch.set_visible(False)
    figure.patch.set_visible(False)
    written = StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # missing glyphs: the browser has them
        figure.savefig(written, format="svg", metadata=NO_METADATA)
    root = ElementTree.fromstring(written.getvalue())
    for prefix, uri in NAMESPACES.items():
        ElementTree.register_namespace(prefix, uri)
    _adapt(root, name)
    del root.attrib["width"], root.attrib["height"]
    kind = "drawing narrow" if figure.get_figwidth() * 72 < WIDTH_PX else "drawing"
    root.attrib |= {"class": kind, "role": "img", "aria-label": printable(text)}
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # written by an XML writer


def standalone(drawing: Markup) -> str:
    """Return an embedded figure as an SVG file of its own, in the page's light colors on its background."""
    css = (Path(__file__).with_name("templates") / "report.css").read_text(encoding="utf-8")
    light: dict[str, str] = {}
    for name, color in VARIABLE.findall(css):
        light.setdefault(name, color)
    text = USED_VARIABLE.sub(lambda match: light[match[1]], str(drawing))
    return text.replace("<svg ", f'<svg style="background: {light["paper"]}; font-family: sans-serif" ', 1)


def short(text: str, most: int = 44) -> str:
    """Return a name as one line of limited length."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _adapt(root: ElementTree.Element, name: str) -> None:
    """Add the prefix to ids, replace colors by variables, and drop styles that would apply to the whole page."""
    link, style_of_page = f"{{{NAMESPACES['xlink']}}}href", f"{{{NAMESPACES['']}}}style"
    for element in root.iter():
        for child in [child for child in element if child.tag == style_of_page]:
            element.remove(child)
        element.text, element.tail = (part if part and part.strip() else None for part in (element.text, element.tail))
        if "id" in element.attrib:
            element.attrib["id"] = f"{name}-{element.attrib['id']}"
        if link in element.attrib:
            element.attrib[link] = f"#{name}-{element.attrib[link][1:]}"
        if "style" in element.attrib:
            style = re.sub(r"font-family: [^;]*;?", "", element.attrib["style"])
            element.attrib["style"] = PLACEHOLDER.sub(lambda match: f"var(--{THEME[int(match[1], 16) - 1]})", style)
