"""The notebooks in examples/ run from top to bottom, and are stored without outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest
from harness import latest_report

from flows.record.home import Home

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


@each_notebook
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)


@pytest.mark.slow
@pytest.mark.timeout(700)
@each_notebook
def test_notebook_runs_to_a_winner(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / ".gauntlet"))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    report = latest_report(Home(tmp_path / ".gauntlet"))
    assert report.verdict == "passed"
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert any("winner" in data["text/plain"] for data in shown)  # the table
    assert any(data.get("text/html", "").startswith("<iframe srcdoc=") for data in shown)  # the report
    assert (tmp_path / "winner.zip").is_file()
