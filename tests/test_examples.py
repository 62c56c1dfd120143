"""The notebooks in examples/ run from top to bottom, and so do the command lines of the README and the five doors."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import framework_models
import image_models
import nbclient
import nbformat
import needs
import numpy as np
import onnx
import pandas as pd
import pytest
from harness import SHORT, latest_report, sets
from small_images import write_pictures

from flows.record.home import Home

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


@each_notebook
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)


@pytest.mark.nightly
@pytest.mark.timeout(700)
@each_notebook
def test_notebook_runs_to_a_winner(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / ".gauntlet"))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert latest_report(Home(tmp_path / ".gauntlet")).verdict == "passed"
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert any("winner" in data["text/plain"] for data in shown)  # the table
    assert any(data.get("text/html", "").startswith("<iframe srcdoc=") for data in shown)  # the report
    assert (tmp_path / "winner.zip").is_file()


PROJECT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/tutorial.md", "docs/how-to/bring-a-model.md", "docs/explanation/measurement.md")
PAGES += ("docs/how-to/use-the-winner.md", "docs/wings/lifecycle.md", "docs/how-to/run-every-night.md")
QUICK = (*SHORT, "optimize=[]")
FURTHER_WORDS = {
    "gauntlet run digits.onnx": shlex.join(sets(*QUICK, "quantize=[{kind: static}]")),
    **dict.fromkeys(
        (f"gauntlet run {file}" for file in ("iris.skops", "network.keras", "model.pt2")),
        shlex.join(sets(*QUICK, "quantize=[]")),
    ),
}
"""Behind these lines, to keep them short."""
NOT_RUN = {
    "git clone": "it is the checkout that is tested",
    "make ": "it installs packages; CI does both",
    "gauntlet run digits-resnet18": "it trains for minutes; tests/test_golden_reports.py runs the presets",
    "gauntlet serve": "it ends with a signal; tests/serving starts it",
    "gauntlet up": "it ends with `gauntlet down`; tests/wings/platform starts it",
    "GAUNTLET_NOTIFY=": "it needs a Slack",
    "model_signing": "a package that nothing here needs; tests/wings/verification has files that it signed",
    "curl": "it needs the internet; tests/wings/prediction reads standard input",
    "gauntlet predict sums.zip": "it needs another model; tests/wings/prediction has one",
}


def lines_of(page: str) -> list[str]:
    text = "".join(re.findall(r"```console\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL))
    return [line.partition(" # ")[0].strip() for line in text.replace("\\\n", " ").splitlines()]


def chosen(words: dict[str, str], line: str) -> str | None:
    return next((words[start] for start in words if line.removeprefix(".venv/bin/").startswith(start)), None)


def run_lines(page: str, folder: Path, home: Path) -> None:
    """Run what a page shows, in its order, in a folder where a user would call it."""
    (folder / ".venv").symlink_to(sys.prefix)
    for line in filter(lambda line: chosen(NOT_RUN, line) is None, lines_of(page)):
        if re.search(r"gauntlet bundle(?! RUN)", line):
            (folder / "digits.zip").unlink(missing_ok=True)  # of an example above
        run = latest_report(Home(home)).run_id if " RUN " in line else ""
        key = next(iter(json.loads((home / "trusted-keys.json").read_bytes()))) if "FINGERPRINT" in line else ""
        words = line.replace(" RUN ", f" {run} ").replace("FINGERPRINT", key) + f" {chosen(FURTHER_WORDS, line) or ''}"
        environment = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "GAUNTLET_HOME": str(home), "HOME": str(folder)}
        done = subprocess.run(["bash", "-c", words], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_commands_for_an_own_model_run_as_the_pages_show_them(tmp_path: Path) -> None:
    needs.every_wing()
    home = tmp_path / "home"
    for page in (PAGES[0], PAGES[1], PAGES[4]):
        folder = tmp_path / Path(page).stem
        write_pictures(folder, *(f"images/{name}" for name in "abcde"), "scans", count=6)
        onnx.save(image_models.image_model(image_models.how()), folder / "digits.onnx")
        for name in ("digit.png", "photo.png"):
            shutil.copy(folder / "scans" / "0000.png", folder / name)
        run_lines(page, folder, home)
    assert (folder / "out.jsonl").read_text().count("\n") == 6
    assert (folder / "digits").is_dir()


@pytest.mark.nightly
def test_commands_for_files_of_frameworks_run_as_the_page_shows_them(tmp_path: Path) -> None:
    needs.every_wing()
    size, rng = framework_models.SIZE, np.random.default_rng(0)
    framework_models.estimator(tmp_path).path.rename(tmp_path / "iris.skops")
    labels = np.arange(90) % framework_models.CLASSES
    table = pd.DataFrame(rng.standard_normal((90, 6)) + labels[:, None]).add_prefix("column_")
    table.assign(target=labels).to_csv(tmp_path / "iris.csv", index=False)
    framework_models.keras_file(tmp_path).path.rename(tmp_path / "network.keras")
    np.save(tmp_path / "x.npy", rng.random((90, size, size, 3), np.float32))
    framework_models.exported_program(tmp_path).path.rename(tmp_path / "model.pt2")
    batches = f"numpy.random.default_rng(0).random((9, 10, 3, {size}, {size}), 'float32')"
    (tmp_path / "loader.py").write_text(f"import numpy\n\n\ndef samples():\n    yield from {batches}\n")
    run_lines(PAGES[2], tmp_path, tmp_path / "home")


def test_lines_that_are_not_run_are_on_a_page() -> None:
    lines = [line.removeprefix(".venv/bin/") for page in PAGES for line in lines_of(page)]
    assert len(lines) > 20
    assert not [start for start in (*NOT_RUN, *FURTHER_WORDS) if not any(line.startswith(start) for line in lines)]
