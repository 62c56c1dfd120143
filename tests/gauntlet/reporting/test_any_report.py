"""Whatever a run recorded, its pages hold together."""

import json
import re
from html.parser import HTMLParser

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport, StageEntry
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown

SCHEMA = jsonschema.Draft202012Validator(RunReport.model_json_schema(mode="serialization"))
VOID = {"meta", "link", "br"}
TAGS = {
    "html", "head", "meta", "link", "title", "style", "body", "main", "header", "section", "p", "h1", "h2", "span",
    "code", "a", "strong", "dl", "dt", "dd", "div", "ol", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th",
    "td", "figure", "figcaption", "svg", "defs", "g", "path", "text", "use", "details", "summary", "br", "abbr",
}  # fmt: skip
NASTY = st.sampled_from(
    [
        '"><script>x</script>',
        "<img src=x onerror=y>",
        "' onload='z",
        "a|b\n|c|",
        "\x00\u202e",
        "</style>",
        "{{ 7*7 }}",
        "<!--",
    ]
)
TEXT = NASTY | st.text(max_size=12)
NUMBER = st.floats() | st.sampled_from([0.0, 1.0, 0.95, 3.72])
COUNT = st.integers(0, 10**12)
STAGE = st.sampled_from(["data", "train", "evaluate", "numerics", "accuracy", "select"]) | TEXT
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.sampled_from(["NaN", "Infinity"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
LOOSE = st.sampled_from(["NaN", "Infinity", 0.5])
EPOCH = st.fixed_dictionaries(
    {"epoch": st.integers(1, 9), "train_loss": LOOSE, "validation_loss": LOOSE,
     "validation_accuracy": LOOSE, "learning_rate": LOOSE}
)  # fmt: skip
TRAIN = st.fixed_dictionaries(
    {"framework": TEXT, "architecture": TEXT, "parameters": COUNT, "best_epoch": st.integers(0, 9),
     "stopped_early": st.booleans(), "history": st.lists(EPOCH, max_size=4)}
)  # fmt: skip
CLASS = st.fixed_dictionaries({"label": TEXT, "precision": LOOSE, "recall": LOOSE, "f1": LOOSE, "images": COUNT})
SCORES = st.fixed_dictionaries(
    {"accuracy": LOOSE, "macro_f1": LOOSE, "classes": st.lists(CLASS, min_size=2, max_size=2),
     "largest_confusions": st.just([]),
     "confusion": st.lists(st.lists(COUNT, min_size=2, max_size=2), min_size=2, max_size=2)}
)  # fmt: skip
ARTIFACT = st.builds(Artifact, name=TEXT, sha256=TEXT, size_bytes=COUNT, path=TEXT)
CHECK = st.builds(
    Check, name=TEXT, value=st.none() | NUMBER, op=st.sampled_from(["<=", ">=", "<", ">", "=="]), limit=NUMBER,
    unit=TEXT, severity=st.sampled_from(["error", "warning"]), detail=TEXT, remedy=TEXT, override=st.none() | TEXT,
)  # fmt: skip
ENTRY = st.builds(
    StageEntry, stage=STAGE, candidate=st.none() | TEXT, cached=st.booleans(), seconds=NUMBER, peak_rss_bytes=COUNT,
    facts=OBJECT | TRAIN | SCORES, checks=st.lists(CHECK, max_size=2).map(tuple),
    artifacts=st.dictionaries(TEXT, ARTIFACT, max_size=1),
)  # fmt: skip
ROW = st.builds(
    BenchmarkRow, target=TEXT, batch=st.integers(1, 64), median_ms=NUMBER, speedup=NUMBER, speedup_low=NUMBER,
    speedup_high=NUMBER, verdict=st.sampled_from(["faster", "slower", "not resolved", "reference"]),
    mean_ms=st.none() | NUMBER, p90_ms=st.none() | NUMBER, p99_ms=st.none() | NUMBER,
    images_per_second=st.none() | NUMBER, peak_rss_bytes=st.none() | COUNT,
)  # fmt: skip
CANDIDATE = st.builds(
    CandidateEntry, name=TEXT, parent=st.none() | TEXT, reason=TEXT,
    status=st.sampled_from(["accepted", "rejected", "unchanged"]),
    accuracy=st.none() | NUMBER, sqnr_db=st.none() | NUMBER, size_bytes=st.none() | COUNT,
    benchmark=st.lists(ROW, max_size=2).map(tuple),
)  # fmt: skip


@st.composite
def reports(draw: st.DrawFn) -> RunReport:
    candidates = draw(st.lists(CANDIDATE, max_size=3).map(tuple))
    winners = st.none() | TEXT | st.sampled_from([c.name for c in candidates] or [None])
    return RunReport(
        run_id=draw(TEXT), name=draw(TEXT), started_at=draw(TEXT), verdict=draw(st.sampled_from(["passed", "failed"])),
        stopped_at=draw(st.none() | STAGE), reason=draw(TEXT), winner=draw(winners), seconds=draw(NUMBER),
        environment=draw(OBJECT), config=draw(OBJECT), links=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
        stages=draw(st.lists(ENTRY, max_size=4).map(tuple)), candidates=candidates,
    )  # fmt: skip


class Outline(HTMLParser):
    """Fails on a tag that is not closed where it should be, and on any tag or attribute that is not the template's."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert not [name for name, _ in attrs if name.startswith("on") or name == "src"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment from foreign text: {data}")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(reports())
def test_any_report_is_well_formed_html_without_foreign_markup(report):
    page = render_html(report)
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    assert "\x00" not in page
    page.encode()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(reports())
def test_any_report_is_markdown_whose_tables_have_straight_columns(report):
    text = render_markdown(report)
    assert "<" not in text
    for block in text.split("\n\n"):
        rows = [line for line in block.split("\n") if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) <= 1
        assert len(rows) in {0, len(block.rstrip("\n").split("\n"))}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(reports())
def test_schema_accepts_any_report(report):
    SCHEMA.validate(json.loads(report.model_dump_json()))


@given(reports())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_report_read_back_from_json_gives_the_same_pages(report):
    again = RunReport.model_validate_json(report.model_dump_json())
    assert render_html(again) == render_html(report)
    assert render_markdown(again) == render_markdown(report)
