"""The machines of a run's races, in the page and in Markdown."""

import io

import remote_facts
from rich.console import Console

from flows.cli.report_tables import print_sections
from gauntlet.core.run_report import RunReport
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown
from wings.machines.library.machines_section import machines


def test_views_show_both_machines_each_with_its_control_and_rows() -> None:
    report = remote_facts.several_machines()
    found = machines(report)
    races, rows = found.tables
    here, there = races.rows
    assert here[:3] == ("this run", "builder", "Xeon Gold 6330 (avx512_vnni)")
    assert there == (
        "ort-cpu-nospin-on-jetson", "orin-7 (pool jetson)", "ARM Cortex-A78AE (asimddp)", "12", "1.2 %", "0.25 cores",
    )  # fmt: skip
    assert [(row[1], row[2], row[-1]) for row in rows.rows] == [
        ("fp32", "ort-cpu", "reference"),
        ("fp32", "ort-cpu-nospin-on-jetson", "not resolved"),
        ("int8", "ort-cpu-nospin-on-jetson", "faster"),
    ]
    page, text = render_html(report), render_markdown(report)
    assert '<h2 id="machines">Machines</h2>' in page
    assert "| orin-7 | int8 | ort-cpu-nospin-on-jetson | 1 | 12.5 ms | 3.20x [3.10, 3.30] | faster |" in text
    for word in ("builder", "Xeon Gold 6330", "orin-7 (pool jetson)", "ARM Cortex-A78AE (asimddp)", "12.5 ms", "1.2 %"):
        assert word in page
        assert word in text


def test_views_say_why_a_target_has_no_rows() -> None:
    report = remote_facts.several_machines()
    for reason in ("no worker of the work pool 'gpu' is alive", "its worker was lost"):
        assert reason.replace("'", "&#39;") in render_html(report)
        assert reason in render_markdown(report)


def test_run_on_one_machine_has_no_such_section() -> None:
    assert shown(remote_facts.one_machine(), 80) == ""
    assert machines(remote_facts.one_machine()) is None
    assert 'id="machines"' not in render_html(remote_facts.one_machine())
    assert "## Machines" not in render_markdown(remote_facts.one_machine())


def test_facts_of_another_version_are_left_out() -> None:
    report = remote_facts.several_machines()
    strange = report.stages[-1].replace(facts={"races": [{"where": "orin"}]})
    assert machines(report.replace(stages=(*report.stages[:-1], strange))) is None


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
