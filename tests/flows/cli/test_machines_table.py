"""The races on other machines, on a terminal of 80 columns and on a wide one."""

import io

import pytest
import remote_facts
from rich.console import Console

from flows.cli.machines_table import print_machines
from gauntlet.core.run_report import RunReport


def shown(report: RunReport, width: int) -> str:
    output = io.StringIO()
    print_machines(Console(file=output, width=width), report)
    return output.getvalue()


@pytest.fixture
def report() -> RunReport:
    known = {"run_id": "r", "name": "digits", "started_at": "2026-11-21T00:00:00+00:00", "verdict": "passed"}
    more = {"stopped_at": None, "reason": "3x", "winner": "int8", "seconds": 1.0, "config": {}, "environment": {}}
    return RunReport.model_validate(known | more | {"stages": (), "candidates": ()})


def test_narrow_terminal_shows_every_machine_with_its_control_and_its_gains(report: RunReport) -> None:
    text = shown(remote_facts.with_machines(report), 80)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("builder", "Xeon Gold 6330", "orin-7", "ARM Cortex-A78AE", "asimddp", "1.2 %", "3.20x [3.10, 3.30]"):
        assert word in text
    assert "verdict" not in text


def test_wide_terminal_also_shows_threads_load_and_verdicts(report: RunReport) -> None:
    text = shown(remote_facts.with_machines(report), 140)
    for word in ("threads", "other load", "0.25 cores", "faster", "ort-cpu-nospin-on-jetson"):
        assert word in text


def test_run_on_one_machine_prints_nothing(report: RunReport) -> None:
    assert shown(report, 80) == ""
