"""The terminal's table: whole where there is room, short with the reasons below it where there is not."""

import io

import pytest
from rich.console import Console

from flows.console import WIDE, print_report, reasons
from tasks.run_report import BECAUSE, BenchmarkRow, CandidateEntry, RunReport

SAME = "optimize.same_graph: the runtime makes the same graph of it"
DROPPED = f"dropped after round 3, slower than small: 0.5x{BECAUSE}its activations are signed"


def measured(speedup: float, verdict: str) -> tuple[BenchmarkRow, ...]:
    row = {"target": "ort-cpu", "batch": 1, "median_ms": 2.0 / speedup, "speedup": speedup, "verdict": verdict}
    return (BenchmarkRow.model_validate(row | {"speedup_low": speedup - 0.1, "speedup_high": speedup + 0.1}),)


def candidate(name: str, reason: str = "", rows: tuple[BenchmarkRow, ...] = ()) -> CandidateEntry:
    status, parent = "rejected" if reason else "accepted", None if name == "fp32" else "fp32"
    return CandidateEntry(name=name, parent=parent, status=status, reason=reason, benchmark=rows)


@pytest.fixture
def report() -> RunReport:
    candidates = (
        candidate("fp32", rows=measured(1.0, "reference")),
        candidate("one", SAME),
        candidate("two", SAME),
        candidate("small", rows=measured(3.0, "faster")),
        candidate("slow", DROPPED, measured(0.5, "slower")),
    )
    known = {"run_id": "r", "name": "digits", "started_at": "2026-11-21T00:00:00+00:00", "verdict": "passed"}
    more = {"stopped_at": None, "reason": "3x", "winner": "small", "seconds": 1.0, "config": {}, "environment": {}}
    return RunReport.model_validate(known | more | {"stages": (), "candidates": candidates})


def printed(report: RunReport, width: int) -> list[str]:
    text = io.StringIO()
    print_report(Console(file=text, width=width), report)
    return text.getvalue().splitlines()


def test_reasons_stand_below_a_narrow_table_once_for_all_who_share_one(report: RunReport) -> None:
    lines = printed(report, 80)
    assert max(map(len, lines)) <= 80
    table = [line for line in lines if line.startswith("│")]
    assert len(table) == 5  # a line a candidate
    assert [line.rstrip("│ ").split()[-1] for line in table] == ["reference", *["rejected"] * 2, "winner", "rejected"]
    told = " ".join(" ".join(line for line in lines if line.startswith("  ")).split())
    assert told == (
        f"one, two rejected: {SAME} "
        "slow rejected: dropped after round 3, slower than small, because its activations are signed"
    )


@pytest.mark.parametrize("width", [80, WIDE + 20])
def test_table_says_where_each_is_to_be_run_when_that_differs(report: RunReport, width: int) -> None:
    assert not any(" on " in line for line in printed(report, width))
    places = {"fp32": "ort-cpu", "small": "openvino-f32", "slow": "ort-cpu"}
    candidates = tuple(c.replace(target=places.get(c.name)) for c in report.candidates)
    lines = printed(report.replace(candidates=candidates), width)
    assert any("winner on openvino-f32" in line for line in lines)
    assert any("reference on ort-cpu" in line for line in lines)
    assert not any("rejected on" in line for line in lines)


def test_wide_table_has_the_reasons_in_its_rows(report: RunReport) -> None:
    lines = printed(report, WIDE + 20)
    assert sum(f"rejected: {SAME}" in line for line in lines) == 2
    assert not any(line.startswith("  ") for line in lines)


def test_nobody_is_rejected_without_being_named(report: RunReport) -> None:
    rejected = {c.name for c in report.candidates if c.status == "rejected"}
    assert {name for names in reasons(report).values() for name in names} == rejected
