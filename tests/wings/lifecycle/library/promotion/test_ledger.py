"""The ledger: a chain that shows every change, whatever a kill left of its last line."""

from pathlib import Path

import pytest
from graded_bundles import run_report
from hypothesis import given
from hypothesis import strategies as st
from ledger_lines import append

from gauntlet.core.report import Check
from wings.lifecycle.library.promotion.gates import gates_of_winner, run_checks
from wings.lifecycle.library.promotion.ledger import (
    FIRST_PARENT,
    Entry,
    Ledger,
    LedgerBroken,
    digest_of,
    last_committed,
    pending,
)

A, B = "a" * 64, "b" * 64


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Two promotions; the second one was interrupted."""
    made = Ledger(tmp_path / "ledgers" / "digits.jsonl")
    append(made, "promote", role="champion", digest=A, after={"champion": A})
    append(made, "commit", intent=1, versions={A: "1"})
    append(made, "promote", role="champion", digest=B, before={"champion": A}, after={"champion": B})
    return made


def test_each_line_has_the_digest_of_the_one_before(ledger: Ledger) -> None:
    entries = ledger.entries()
    assert [entry.number for entry in entries] == [1, 2, 3]
    assert [entry.parent for entry in entries] == [FIRST_PARENT, *map(digest_of, ledger.lines()[:2])]
    assert entries[2].replaced == A


def test_intent_without_an_end_is_pending_and_the_last_committed_one_is_known(ledger: Ledger) -> None:
    assert getattr(pending(ledger.entries()), "number", None) == 3
    assert getattr(last_committed(ledger.entries()), "number", None) == 1
    append(ledger, "undo", intent=3)
    assert pending(ledger.entries()) is None
    assert getattr(last_committed(ledger.entries()), "number", None) == 1


def test_line_that_a_kill_cut_short_is_as_if_it_had_not_been_written(ledger: Ledger) -> None:
    whole = ledger.path.read_bytes()
    kept = whole[: whole.rfind(b"\n", 0, -1) + 1]
    for end in range(len(kept), len(whole)):  # every length of the last line but the whole
        ledger.path.write_bytes(whole[:end])
        assert [entry.number for entry in ledger.entries()] == [1, 2]
    append(ledger, "refuse")
    assert [entry.op for entry in ledger.entries()] == ["promote", "commit", "refuse"]


@given(st.data())
def test_any_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "digits.jsonl")
    for op in ("promote", "commit", "refuse"):
        append(ledger, op, intent=1 if op == "commit" else None)
    content = bytearray(ledger.path.read_bytes())
    last = content.rfind(b"\n", 0, -1) + 1  # the last line has no successor yet; the registry holds its digest
    at = data.draw(st.integers(0, last - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    ledger.path.write_bytes(content)
    with pytest.raises(LedgerBroken):
        ledger.entries()


@pytest.mark.parametrize(("kept", "line"), [((0, 2), 2), ((1, 2), 1), ((0, 0, 1, 2), 2), ((1, 0, 2), 1)])
def test_removed_repeated_or_moved_line_is_named(ledger: Ledger, kept: tuple[int, ...], line: int) -> None:
    lines = ledger.lines()
    ledger.path.write_bytes(b"".join(lines[i] + b"\n" for i in kept))
    with pytest.raises(LedgerBroken, match=f"line {line}: .*Fix: restore"):
        ledger.entries()
    entries, problem = ledger.read()
    assert (len(entries), problem is None) == (line - 1, False)


def test_entry_reads_back_as_it_was_written(ledger: Ledger) -> None:
    entry = append(ledger, "refuse", why="ümlaut \u2028 and\nnewline")
    assert Entry.model_validate_json(ledger.lines()[-1]) == entry
    assert ledger.entries()[-1] == entry


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
