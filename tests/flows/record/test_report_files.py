"""What a finished run leaves for people."""

import xml.etree.ElementTree as ET
from pathlib import Path

from harness import journal

from flows.record.home import Home
from flows.record.report_files import PARETO_FILE, REPORT_FILES


def test_run_leaves_the_chart_of_its_candidates_and_sends_it(finished_home: Path) -> None:
    folder = Home(finished_home / ".gauntlet").finished_run()
    assert folder is not None
    assert all((folder / name).is_file() for name in (*REPORT_FILES, PARETO_FILE))
    root = ET.parse(folder / PARETO_FILE).getroot()
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"latency of one call, ms", "file size, MB"} <= texts
    sent = [event for event in journal(folder) if event["op"] == "file" and event["path"].endswith(PARETO_FILE)]
    assert [event["folder"] for event in sent] == ["pictures"]
