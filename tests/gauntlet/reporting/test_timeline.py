from pathlib import Path

from gauntlet.core.artifact import Artifact
from gauntlet.reporting import text_format, timeline
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown


def test_a_stopped_run_ends_where_it_stopped(stopped_at_numerics):
    states = [(step.stage, step.state) for step in timeline.timeline(stopped_at_numerics)]
    assert states[4:] == [("structure", "passed"), ("numerics", "failed")]
    assert ("train", "cached") in states


def test_candidates_of_one_stage_are_one_step_and_a_dropped_one_does_not_fail_it(passed):
    step = next(s for s in timeline.timeline(passed) if s.stage == "accuracy")
    assert (step.state, step.note) == ("passed", "5 candidates, 1 rejected")
    assert [s.note for s in timeline.timeline(passed) if s.stage == "numerics"] == ["", "1 candidate"]


def test_a_stage_that_crashed_before_its_report_still_shows(stopped_at_data):
    first = timeline.timeline(stopped_at_data.replace(stopped_at="train", stages=()))[0]
    assert (first.stage, first.state, first.note) == ("train", "failed", "left no report")


def test_failed_gates_come_first(stopped_at_numerics):
    assert timeline.gates(stopped_at_numerics)[0].state == "failed"


def test_what_rejected_a_candidate_has_not_failed_a_passed_run(passed):
    states = [gate.state for gate in timeline.gates(passed)]
    assert states[:2] == ["warning", "rejected"]
    assert "failed" not in states
    assert set(states[2:]) == {"passed"}


def test_without_an_obstacle_on_the_main_line_those_of_the_candidates_are_told(passed):
    lost = passed.replace(verdict="failed", stopped_at="select")
    assert [gate.candidate for gate in timeline.blocking_checks(lost)] == ["static-s8s8"]


def test_the_batch_size_that_the_configuration_names_decides(passed):
    best = timeline.winner(passed)
    assert timeline.deciding_row(passed, best.side_by_side).batch == 1
    assert timeline.deciding_row(passed.replace(config={"select": {"batch": 8}}), best.side_by_side).batch == 8
    assert timeline.deciding_row(passed.replace(config={"select": "odd"}), best.side_by_side).batch == 1
    assert timeline.reference(passed).name == "fp32"
    assert timeline.ordered_candidates(passed)[0] is best


def test_the_bundle_is_named_in_every_view_with_the_commands_that_use_it(passed):
    file = Artifact(name="bundle.zip", sha256="5d", size_bytes=1, path="5d/5d-bundle.zip/bundle.zip")
    entry = passed.stages[0].replace(stage="package", candidate=None, artifacts={"bundle": file})
    report = passed.replace(stages=(*passed.stages, entry))
    assert timeline.bundle_file(report, Path("/store")) == Path("/store") / file.path
    commands = timeline.bundle_uses(report)
    for view in (render_markdown(report, Path("/store")), render_html(report, Path("/store"))):
        assert all(words in view for words in (f"/store/{file.path}", *commands))
    assert timeline.bundle_file(report.replace(winner=None), Path("/store")) is None
    assert timeline.bundle_file(passed, Path("/store")) is None
    assert "gauntlet bundle" not in render_markdown(passed) + render_html(passed)


def test_all_candidates_of_a_stage_rejected_is_no_failed_stage_while_the_run_goes_on(passed):
    entry = passed.stage("accuracy", "static-s8s8")
    step = next(s for s in timeline.timeline(passed.replace(stages=(entry,))) if s.stage == "accuracy")
    assert (step.state, step.note) == ("rejected", "1 candidate, 1 rejected")


def test_remarks_tell_what_the_columns_and_the_reason_do_not(passed):
    second = next(c for c in passed.candidates if c.name == "dynamic")
    first, other = second.benchmark
    lost = {"stopped_after_round": 3, "stopped_for": "static-u8s8", "stopped_as": "slower"}
    elsewhere = first.replace(target="openvino-f32", more_rounds=17)
    rows = (first.replace(**lost), other.replace(**lost), elsewhere)
    assert timeline.remarks(passed, second.replace(benchmark=rows), [1, 8]) == [
        "Batch 8 on ort-cpu: dropped after round 3, slower than static-u8s8.",
        "Batch 1 on openvino-f32: 6.41 ms, 0.61x [0.59, 0.64], slower, about 17 more rounds would probably resolve it.",
    ]
    assert timeline.measured(first.replace(**lost)) == "6.41 ms, 0.61x [0.59, 0.64]"
    assert timeline.remarks(passed, second, [1]) == ["Batch 8 on ort-cpu: 51.2 ms, 0.48x [0.47, 0.50], slower."]
    assert timeline.remarks(passed, second, [1, 8]) == []


def test_flatten():
    values = {"a": {"b": [1, 2], "c": {}}, "d": [{"e": None}], "f": True, "g": []}
    expected = [("a.b", "1, 2"), ("a.c", "none"), ("d.0.e", "none"), ("f", "true"), ("g", "none")]
    assert text_format.flatten(values) == expected
