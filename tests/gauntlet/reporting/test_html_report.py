"""The report as a page and as Markdown."""

import json
import math
import re
from pathlib import Path

import jsonschema
import pytest
from recorded_facts import with_facts

from flows.tracking.metric_names import parent_metrics
from gauntlet.reporting import text_format as written
from gauntlet.reporting import timeline
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import escape, render_markdown
from gauntlet.reporting.summary_cards import summary_cards
from tasks.benchmark.facts import BenchmarkFacts
from tasks.select.decision import Confirmation, OverNormalized


def plain(page: str) -> str:
    """The page's text without tags, on one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", page[page.index("</style>") :]).split())


def test_a_passed_run_tells_who_won_by_how_much_and_how_sure(passed):
    page = plain(render_html(passed))
    assert "✓ Passed digits-resnet18 2026-05-02 12:34 UTC · took 3 min 51 s" in page
    assert "Winner: static-u8s8" in page
    assert "Rejected, 3 of 5 candidates tried: onnxslim, dynamic, static-s8s8." in page
    assert "Speed 3.72x 95 % interval [3.65, 3.80], batch 1 2.88x [2.61, 3.02] at batch 8" in page
    assert "Accuracy 98.9 % fp32: 99.2 % Size 11.3 MB fp32: 44.7 MB" in page
    assert "not resolved" in page
    assert "0.0417 ≤ 0.01" in page
    assert "8 predicted as 1 (2), 3 predicted as 9 (1)." in page


def test_a_speed_up_over_a_slow_file_is_shown_beside_that_over_the_normalized_one(passed):
    beside = {"normalized": "normalized", "speedup": 1.5, "speedup_low": 1.45, "speedup_high": 1.56}

    def page(confirmed: bool) -> str:
        raced = Confirmation.model_construct(
            candidate="static-u8s8", confirmed=confirmed, over_normalized=OverNormalized(**beside),
            race=BenchmarkFacts.model_construct(aa_deviation=0.012),
        )  # fmt: skip
        stages = [
            with_facts(each, confirmations=(raced,)) if each.stage == "select" else each for each in passed.stages
        ]
        return plain(render_html(passed.replace(stages=tuple(stages))))

    assert "95 % interval [3.65, 3.80], batch 1 1.50x [1.45, 1.56] the speed of normalized" in page(confirmed=True)
    assert "the speed of normalized" not in page(confirmed=False)


def test_a_cancelled_run_has_not_failed(passed):
    changes = {"verdict": "cancelled", "reason": "cancelled", "stopped_at": "select", "winner": None}
    report = passed.replace(**changes, stages=passed.stages[:-1])
    page = plain(render_html(report))
    assert "○ Cancelled" in page
    assert "Cancelled at select" in page
    assert "What stopped the run" not in page
    assert timeline.timeline(report)[-1].state == "cancelled"
    assert render_markdown(report).startswith("# ○ digits-resnet18: cancelled\n\n**Cancelled at select.**\n\n## Cand")


def test_latencies_side_by_side_are_of_the_same_rounds_and_the_speed_up_is_the_confirmed_one(passed):
    winner = timeline.winner(passed)
    slower = tuple(row.replace(median_ms=99.0, speedup=1.5, speedup_low=1.4) for row in winner.benchmark)
    confirmed = winner.replace(benchmark=slower, first_race=winner.benchmark)
    changed = passed.replace(candidates=tuple(confirmed if c is winner else c for c in passed.candidates))
    for page in (plain(render_html(changed)), render_markdown(changed).replace("| ", "")):
        assert page.count("static-u8s8, raced again alone ort-cpu 1 99.0 ms") == 1
        assert page.count("static-u8s8 ort-cpu 1 1.05 ms") == 1
    speed, latency = summary_cards(changed)[:2]
    assert latency.notes[-1] == "99.0 ms raced again alone"  # as in the bundle
    assert (speed.value, latency.value) == ("1.50x", written.milliseconds(winner.benchmark[0].median_ms))
    base = timeline.deciding_row(passed, timeline.reference(passed).side_by_side)
    assert f"fp32: {written.milliseconds(base.median_ms)}" in latency.notes


def test_a_reference_that_wins_elsewhere_has_both_latencies_and_no_card_without_a_figure(passed):
    base = timeline.reference(passed)
    elsewhere = tuple(
        row.replace(target="openvino", median_ms=2.0, speedup=2, verdict="faster") for row in base.benchmark
    )
    won = base.replace(benchmark=elsewhere + base.benchmark, target="openvino", accuracy=None)
    others = tuple(c.replace(accuracy=None) for c in passed.candidates[1:])
    speed, latency, size = summary_cards(passed.replace(winner=base.name, candidates=(won, *others)))
    assert (speed.label, latency.value, size.label) == ("Speed", "2.00 ms", "Size")
    assert "fp32 on ort-cpu: 3.91 ms" in latency.notes
    [_, latency, *_] = summary_cards(passed.replace(candidates=(won, *passed.candidates[1:])))
    assert "fp32 on ort-cpu: 3.91 ms" not in latency.notes
    assert "fp32: 3.91 ms" in latency.notes  # what the speed-up is over, and not the 2 ms elsewhere


@pytest.mark.parametrize(
    ("names", "words"), [(["fp32"], "The reference, by"), (["fp32", "dynamic"], "and the fastest")]
)
def test_page_says_whose_time_it_shows(passed, names, words):
    shares = dict.fromkeys(("layout_share", "qdq_share", "non_kernel_share"), 0.1)
    conv = {"operator": "Conv", "ms": 1.0, "nodes": 1, "share": 0.7}
    profile = {"calls": 3, "call_ms": 1.0, "operators": [conv], "slowest": [], **shares}
    race = {"target": "ort-cpu", "batch": 1, "unprofiled_ms": 1.0, "profile": profile}
    entry = with_facts(passed.stage("benchmark"), profiles=[{"candidate": name} | race for name in names])
    assert words in plain(render_html(passed.replace(stages=(entry,))))


def test_a_candidate_without_anything_to_gain_is_not_rejected(passed):
    changes = {"name": "ort-extended", "status": "unchanged", "reason": "nothing to gain here", "benchmark": ()}
    same, late = (passed.candidates[1].replace(**changes | {"status": each}) for each in ("unchanged", "not tried"))
    report = passed.replace(candidates=(*passed.candidates, same, late))
    page = plain(render_html(report))
    assert "= unchanged" in page
    assert "nothing to gain here" in page
    assert "Rejected, 3 of 6 candidates tried: onnxslim, dynamic, static-s8s8." in page
    assert parent_metrics(report, {})["candidates_tried"] == 6  # in MLflow, too: neither the reference nor `late`
    assert "| ort-extended | = unchanged |" in render_markdown(report)


def test_a_failed_run_tells_where_it_stopped_and_how_to_fix_it(stopped_at_numerics):
    page = plain(render_html(stopped_at_numerics))
    assert "✗ Failed" in page
    assert "Stopped at numerics" in page
    assert "first divergent tensor: /layer3/conv1/Conv_output_0" in page
    assert "Fix: look at that node" in page
    assert page.count("must be") == 1, "the reason is not told twice"


@pytest.mark.parametrize(
    ("run", "present", "absent"),
    [
        ("passed", {"candidates", "gates", "scores", "training", "record"}, {"stopped"}),
        ("stopped_at_numerics", {"stopped", "gates", "scores", "training", "record"}, {"candidates"}),
        ("stopped_at_data", {"stopped", "gates", "data", "record"}, {"candidates", "scores", "training"}),
    ],
)
def test_a_section_is_there_when_its_stage_ran(run, present, absent, request):
    sections = set(re.findall(r'<h2 id="([a-z-]+)"', render_html(request.getfixturevalue(run))))
    assert present <= sections
    assert not absent & sections


def test_the_page_asks_for_nothing(passed):
    page = render_html(passed)
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', page) == ["data:,", "http://127.0.0.1:5000/#/experiments/1"]


EVIL = '"><script>a|b\n|c|\x00{{ 7*7 }}</style><!--'


def test_foreign_text_is_escaped_wherever_it_stands(passed):
    checks = tuple(
        check.replace(name=EVIL, detail=EVIL, remedy=EVIL, override=EVIL, unit=EVIL)
        for check in passed.stage("evaluate").checks
    )
    stages = tuple(entry.replace(checks=checks) if entry.stage == "evaluate" else entry for entry in passed.stages)
    candidates = tuple(each.replace(name=EVIL, parent=EVIL, reason=EVIL) for each in passed.candidates)
    texts = {"name": EVIL, "reason": EVIL, "winner": EVIL, "environment": {EVIL: EVIL}, "links": {EVIL: EVIL}}
    report = passed.replace(**texts, stages=stages, candidates=candidates)
    page, text = render_html(report), render_markdown(report)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<!--" not in page
    assert "\x00" not in page
    assert page.count("</style>") == 1
    assert "<" not in text
    for block in text.split("\n\n"):
        rows = [line for line in block.split("\n") if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) <= 1
        assert len(rows) in {0, len(block.rstrip("\n").split("\n"))}


def test_report_with_infinite_seconds_fits_its_schema(passed):
    report = passed.replace(seconds=math.inf)
    jsonschema.validate(json.loads(report.model_dump_json()), type(passed).model_json_schema(mode="serialization"))


def test_tables_have_scopes_and_drawings_have_words(passed):
    pytest.importorskip("wings.drawings")
    page = render_html(passed)
    assert re.search(r"<th(?!ead)(?![^>]*scope=)[^>]*>", page[page.index("<body>") :]) is None
    drawings = re.findall(r'<svg [^>]*role="img" aria-label="([^"]+)"', page)
    assert len(drawings) == page.count("<svg ") == 5
    assert "static-u8s8, batch 1 on ort-cpu: 3.72x [3.65, 3.80], faster, median 1.05 ms" in drawings[0]
    assert "static-u8s8: 1.05 ms, 11.3 MB, 98.9 %; " in drawings[1]
    assert "Training loss: 2.1 after the first epoch, 0.3979 after the last" in drawings[-1]


def test_no_two_elements_share_an_id(passed):
    pytest.importorskip("wings.drawings")
    ids = re.findall(r' id="([^"]*)"', render_html(passed))
    assert len(ids) > 20
    assert len(set(ids)) == len(ids)


def test_the_winners_file_and_every_artifact_is_named_with_its_path(passed):
    model = passed.stage("export").artifacts["model"]
    won = tuple(c.replace(artifact=model) if c.name == passed.winner else c for c in passed.candidates)
    report, store = passed.replace(candidates=won), Path("/home/me/store")
    page = plain(render_html(report, store))
    assert f"Model: {store}/{model.path}" in page
    assert f"\n\nModel: {store}/{model.path}\n\n" in render_markdown(report, store)
    assert "relative to the artifact store, /home/me/store ." in page
    assert page.count(model.path) == 2  # the winner, and the row of the artifact


def test_a_candidate_has_one_row_of_numbers_and_its_reason_below_them(passed):
    table = re.search(r'<table class="candidates.*?</table>', render_html(passed), re.DOTALL)[0]
    assert len(re.findall(r'<tr role="row">', table)) == 1 + len(passed.candidates)
    row, below = re.findall(r"<tr.*?</tr>", table, re.DOTALL)[1:3]
    assert 'class="below"' in below
    assert "3.72x [3.65, 3.80]" in row
    assert "2.88x [2.61, 3.02]" in row
    assert 'colspan="7"' in below
    assert "faster: 3.72x [3.65, 3.80] at batch 1" in below


def test_facts_that_are_known_as_json_alone_are_left_out(passed):
    read = type(passed).model_validate_json(passed.model_dump_json())
    assert 'id="scores"' not in render_html(read)
    assert "Winner: static-u8s8" in plain(render_html(read))


def test_many_classes_give_no_matrix_but_the_worst_classes(passed):
    count = 60
    entry = passed.stage("evaluate")
    classes = [{**entry.facts["classes"][0], "label": f"c{i}", "f1": i / count} for i in range(count)]
    large = with_facts(entry, classes=classes, confusion=[])
    page = render_html(passed.replace(stages=(large,)))
    assert "Confusion matrix" not in page
    assert "the 40 with the lowest F1 of 60" in page
    assert "c0<" in page
    assert "c59<" not in page


def test_an_overridden_check_shows_why(stopped_at_numerics):
    entry = stopped_at_numerics.stage("numerics")
    checks = tuple(check.replace(override="accepted until the next release") for check in entry.checks)
    page = plain(render_html(stopped_at_numerics.replace(stages=(entry.replace(checks=checks),))))
    assert "≈ overridden" in page
    assert "Overridden: accepted until the next release" in page


def test_a_passed_run(passed):
    text = render_markdown(passed)
    assert text.startswith("# ✓ digits-resnet18: passed\n\n**Winner: static-u8s8** · **3.72x [3.65, 3.80]** at batch 1")
    assert "98.9 % accuracy (fp32: 99.2 %) · 11.3 MB (fp32: 44.7 MB)" in text
    assert "| **static-u8s8** | ✓ winner | 98.9 % | 34.1 | 11.3 MB | 1 | 1.05 ms | 3.72x [3.65, 3.80] |" in text
    assert "| ✗ rejected | accuracy.max_accuracy_drop | static-s8s8 | 0.0417 | ≤ 0.01 | 360 samples | calibrate" in text
    assert "| accuracy | ✓ passed | 4.00 s | 5 candidates, 1 rejected |" in text
    assert "[MLflow](http://127.0.0.1:5000/#/experiments/1)" in text
    assert "javascript" not in text
    assert len(text.splitlines()) < 60


def test_a_failed_run(stopped_at_numerics):
    text = render_markdown(stopped_at_numerics)
    assert text.startswith(
        "# ✗ digits-resnet18: failed\n\n**Stopped at numerics.**\n\n## What stopped the run\n\n- **numerics."
    )
    assert ".  \n  **Fix:** look at that node; if the difference is acceptable, set numerics.max_rel_error\n" in text
    assert text.count("look at that node") == 1
    assert "## Candidates" not in text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a|b", r"a\|b"),
        ("a\n| b |\r\nc", r"a \| b \| c"),
        ("<b>&lt;", "&lt;b&gt;&amp;lt;"),
        ("[x](javascript:alert(1))", r"[x\](javascript:alert(1))"),
        ("min_accuracy of _all_", r"min_accuracy of \_all\_"),
        ("# not a heading", r"\# not a heading"),
        ("1. no list", r"1\. no list"),
        ("3.72x [3.65, 3.80]", "3.72x [3.65, 3.80]"),
        ("`**~~", r"\`\*\*\~\~"),
    ],
)
def test_escape(text, written):
    assert escape(text) == written
