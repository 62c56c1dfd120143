"""Which runs may be promoted."""

from graded_bundles import run_report

from gauntlet.core.report import Check
from wings.lifecycle.library.promotion.gates import damage_check, gates_of_winner, run_checks

FAILED = Check.of("accuracy.max_accuracy_drop", 0.03, "<=", 0.01)


def blocking(checks: tuple[Check, ...]) -> list[str]:
    return [check.name for check in checks if check.blocks]


def test_gates_are_those_of_the_winner_and_not_of_a_rejected_candidate_it_was_made_from() -> None:
    report = run_report("r", Check.of("accuracy.unresolved", 0, "==", 0))
    assert [check.name for check in gates_of_winner(report)] == ["structure.nodes", "accuracy.unresolved"]


def test_passed_run_is_allowed() -> None:
    assert blocking(run_checks(run_report(), "")) == []


def test_failed_run_is_refused_whatever_the_reason_is() -> None:
    report = run_report(verdict="failed", stopped_at="numerics", reason="numerics.max_rel_error: 1 must be <= 0")
    for why in ("", "the boss wants it"):
        checks = run_checks(report, why)
        assert blocking(checks) == ["promote.run_passed"]
        assert "numerics" in str(checks[0])


def test_overridden_gate_needs_a_reason() -> None:
    report = run_report("r", FAILED.replace(override="ticket 7"))
    checks = run_checks(report, "")
    assert blocking(checks) == ["promote.overridden_gates"]
    assert "accuracy.max_accuracy_drop: ticket 7" in str(checks[1])
    assert "--why" in str(checks[1])
    allowed = run_checks(report, "test fleet only")
    assert blocking(allowed) == []
    assert allowed[1].override == "test fleet only"


def test_bundle_without_a_report_needs_a_reason() -> None:
    assert blocking(run_checks(None, "")) == ["promote.report"]
    assert blocking(run_checks(None, "from the archive")) == []


def test_damage_is_refused_and_named() -> None:
    check = damage_check(["model.onnx: changed"])
    assert check.blocks
    assert "model.onnx: changed" in str(check)
    assert not damage_check([]).blocks
