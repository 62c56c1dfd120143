"""The races on other machines, on a terminal of 80 columns and on a wide one."""

import io

import remote_facts
from rich.console import Console

from flows.cli.report_tables import print_sections
from gauntlet.core.run_report import RunReport


def shown(report: RunReport, width: int) -> str:
    output = io.StringIO()
    print_sections(Console(file=output, width=width), report)
    return output.getvalue()


def test_narrow_terminal_shows_every_machine_with_its_control_and_its_gains() -> None:
    text = shown(remote_facts.several_machines(), 80)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("builder", "Xeon Gold 6330", "orin-7", "ARM Cortex-A78AE", "asimddp", "1.2 %", "3.20x [3.10, 3.30]"):
        assert word in text
    assert "verdict" not in text


def test_wide_terminal_also_shows_threads_load_and_verdicts() -> None:
    text = shown(remote_facts.several_machines(), 140)
    for word in ("threads", "other load", "0.25 cores", "faster", "ort-cpu-nospin-on-jetson"):
        assert word in text


def test_run_on_one_machine_prints_nothing() -> None:
    assert shown(remote_facts.one_machine(), 80) == ""
