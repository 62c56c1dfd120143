from tasks.render import facts, sparkline, story
from tasks.report import Check


def test_a_stopped_run_lists_what_it_did_not_reach(stopped_at_numerics):
    states = [(step.stage, step.state) for step in story.steps(stopped_at_numerics)]
    ahead = ("optimize", "prune", "calibrate", "quantize", "repair", "accuracy", "portability", "benchmark", "explain")
    assert states[4:6] == [("structure", "passed"), ("numerics", "failed")]
    assert states[6:] == [(stage, "not run") for stage in (*ahead, "select")]
    assert ("train", "cached") in states


def test_candidates_of_one_stage_are_one_step_and_a_dropped_one_does_not_fail_it(passed):
    step = next(s for s in story.steps(passed) if s.stage == "accuracy")
    assert (step.state, step.note) == ("passed", "5 candidates, 1 rejected")
    assert [s.note for s in story.steps(passed) if s.stage == "numerics"] == ["", "1 candidate"]


def test_what_makes_candidates_comes_before_what_judges_them(passed):
    mixed = [e for e in passed.stages if e.candidate is not None][::-1]
    assert [s.stage for s in story.steps(passed.replace(stages=tuple(mixed)))] == [
        "quantize", "optimize", "numerics", "accuracy",
    ]  # fmt: skip


def test_a_stage_that_crashed_before_its_report_still_shows(stopped_at_data):
    crashed = stopped_at_data.replace(stopped_at="train", stages=())
    first = story.steps(crashed)[0]
    assert (first.stage, first.state, first.note) == ("train", "failed", "left no report")


def test_failed_gates_come_first(passed):
    states = [gate.state for gate in story.gates(passed)]
    assert states[:2] == ["failed", "warning"]
    assert set(states[2:]) == {"passed"}


def test_obstacles_are_those_of_the_main_line(passed, stopped_at_numerics):
    assert story.obstacles(passed) == []
    names = [gate.check.name for gate in story.obstacles(stopped_at_numerics)]
    assert names == ["numerics.max_abs_error"]


def test_without_an_obstacle_on_the_main_line_those_of_the_candidates_are_told(passed):
    lost = passed.replace(verdict="failed", stopped_at="select")
    assert [gate.candidate for gate in story.obstacles(lost)] == ["static-s8s8"]


def test_an_overridden_check_is_neither_passed_nor_failed():
    check = Check(name="a.b", value=2, op="<=", limit=1, override="known, ticket 7")
    assert story.state_of(check) == "overridden"


def test_the_batch_size_that_the_configuration_names_decides(passed):
    best = story.winner(passed)
    assert story.decisive(passed, best).batch == 1
    assert story.decisive(passed.replace(config={"select": {"batch": 8}}), best).batch == 8
    assert story.decisive(passed.replace(config={"select": "odd"}), best).batch == 1
    assert story.reference(passed).name == "fp32"
    assert story.ranked(passed)[0] is best


def test_facts_of_another_shape_are_left_out(passed):
    assert facts.read(passed, "evaluate", facts.Scores).mistakes(1) == [("8", "1", 2)]
    entry = passed.stage("evaluate")
    ragged = entry.replace(facts=entry.facts | {"confusion": [[1, 2], [3]]})
    assert facts.read(passed.replace(stages=(ragged,)), "evaluate", facts.Scores) is None
    assert facts.read(passed.replace(stages=()), "evaluate", facts.Scores) is None


def test_flatten():
    values = {"a": {"b": [1, 2], "c": {}}, "d": [{"e": None}], "f": True, "g": []}
    assert facts.flatten(values) == [("a.b", "1, 2"), ("a.c", "none"), ("d.0.e", "none"), ("f", "true"), ("g", "none")]


def test_a_curve_is_broken_where_a_value_is_no_number():
    assert sparkline.lines([1.0, 0.5, float("nan"), 0.0, 0.5]) == ("0.00,0.00 25.00,15.00", "75.00,30.00 100.00,15.00")
    assert sparkline.lines([float("inf"), 1.0]) == ()
