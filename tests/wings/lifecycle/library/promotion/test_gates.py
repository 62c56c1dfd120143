"""Which runs may be promoted."""

from graded_bundles import run_report

from gauntlet.core.report import Check
from wings.lifecycle.library.promotion.gates import gates_of_winner, run_checks


def blocking(checks: tuple[Check, ...]) -> list[str]:
    return [check.name for check in checks if check.blocks]


def test_gates_are_those_of_the_winner_and_not_of_a_rejected_candidate_it_was_made_from() -> None:
    report = run_report("r", Check.of("accuracy.unresolved", 0, "==", 0))
    assert [check.name for check in gates_of_winner(report)] == ["structure.nodes", "accuracy.unresolved"]


def test_passed_run_is_allowed() -> None:
    assert blocking(run_checks(run_report(), "")) == []


def test_bundle_without_a_report_needs_a_reason() -> None:
    assert blocking(run_checks(None, "")) == ["promote.report"]
    assert blocking(run_checks(None, "from the archive")) == []
