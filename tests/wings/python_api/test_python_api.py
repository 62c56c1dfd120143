"""`import gauntlet`: the commands as functions."""

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import exported_models
import needs
import numpy as np
import onnx
import pytest
from harness import SHORT

import gauntlet
from gauntlet.core import kinds
from gauntlet.core.arrays import data_table
from wings.python_api.functions import home_for, options_for

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Hides the one of this folder's conftest: nothing here needs a finished run."""
    return tmp_path


def script(folder: Path, text: str) -> str:
    """Run a script in a process of its own, and return what it prints."""
    own = {"GAUNTLET_HOME": str(folder / "home"), "GAUNTLET_HOST_LOCK": str(folder / "lock"), "COLUMNS": "200"}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.usefixtures("prefect_server")
def test_examples_of_the_page_run_to_a_winner_that_predicts(folder: Path) -> None:
    needs.every_wing()
    printed = script(folder, "\n".join(EXAMPLES))
    assert "select passed" in printed
    assert re.search(r"x \[.*\] at batch 1 on \S+ +candidate", printed)  # the winner, and the table
    assert printed.count("ArraysPrediction(") == 2
    assert re.search(r"/store/\S+ +candidate", printed)  # the quantized file, and the table
    assert re.search(r"model +ort-cpu +8 .* reference", printed)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_failed_gate_raises_and_leaves_a_report(folder: Path) -> None:
    """The gate of a run, and that of a quantization of which no file stays accurate."""
    onnx.save(exported_models.convolutions(11), folder / "model.onnx")
    quick = [*SHORT, "accuracy.min_sqnr_db=200", "quantize=[{kind: static}]"]
    printed = script(
        folder,
        f"quick = {quick}"
        """
import gauntlet
try:
    gauntlet.run("model.onnx", quiet=True, set={"structure.max_opset": 7})
except gauntlet.GateFailed as error:
    print(f"[{error}]", *error.__notes__)
print(gauntlet.show().winner, gauntlet.show().report)
print("quantize")
try:
    gauntlet.quantize("model.onnx", quiet=True, set=quick)
except gauntlet.GateFailed as error:
    print(f"[{error}]")
print(*gauntlet.show().table["candidate"])
""",
    )
    of_run, _, of_quantize = printed.partition("quantize\n")
    assert of_run.startswith("[structure.max_opset")
    assert "Its report is gauntlet.show(" in of_run
    assert re.search(r"None .*report\.html\n$", of_run)
    assert of_quantize.startswith("[quantize: no candidate is proven smaller than fp32 by more than")
    assert "Fix: gauntlet.show(" in of_quantize
    assert "chain" not in of_quantize.splitlines()[-1]  # no graph passes take part


@pytest.mark.nightly
@pytest.mark.usefixtures("prefect_server")
def test_module_and_a_generator_end_with_a_bundle_that_agrees_with_the_module(folder: Path) -> None:
    pytest.importorskip("torch")
    quick = ["benchmark.rounds=6", "benchmark.batch_sizes=[1]", "benchmark.profile=false", "numerics.samples=8"]
    quick.append("quantize=[]")
    printed = script(
        folder,
        f"""
import torch, gauntlet
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(), torch.nn.Linear(8, 4))
samples = torch.randn(40, 6)
loader = DataLoader(TensorDataset(samples, torch.arange(40) % 4), batch_size=16)
result = gauntlet.run(network, (batch for batch in loader), quiet=True, out="winner.onnx", set={quick})
[outputs] = result.bundle.run(samples).values()
expected = network.eval()(samples).detach().numpy()
print(abs(outputs - expected).max() < 1e-4, result.details.metric, result.details.name)
""",
    )
    assert printed == "True accuracy sequential\n"
    assert onnx.load(folder / "winner.onnx").graph.node


def test_result_has_the_winner_the_table_the_report_and_the_bundle(finished_home: Path, tmp_path: Path) -> None:
    result = gauntlet.show(home=finished_home / ".gauntlet")
    winner, rows = result.winner, result.table.to_dict("records")
    assert winner.path.is_file()
    assert winner.name == rows[0]["candidate"] == result.details.winner
    assert winner.speedup_low <= winner.speedup <= winner.speedup_high
    assert rows[0]["verdict"] == "winner"
    assert rows[0]["b1.speedup"] == winner.speedup
    assert len(rows) == len(result.details.candidates)
    assert result.report._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html')
    assert str(winner) in str(result)
    assert result.save(tmp_path / "winner.zip") == tmp_path / "winner.zip"
    image = np.zeros((8, 8), np.uint8)
    assert gauntlet.load(tmp_path / "winner.zip")(image) == result.bundle(image)
    with pytest.raises(gauntlet.ConfigError, match=r"winner\.zip: it exists"):
        result.save(tmp_path / "winner.zip")


def test_table_is_a_list_of_rows_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert data_table([{"a": 1}, {"a": 2}]) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("command", "keywords", "expected"),
    [
        ("run", {"config": "m.onnx"}, {"fresh": False, "set": [], "shape": [], "task": None, "data": None}),
        ("run", {"config": "m", "fresh": True, "labels": Path("n.txt")}, {"fresh": True, "labels": "n.txt"}),
        ("run", {"config": "m", "shape": {"x": (3, 8, 8)}}, {"shape": [("x", (3, 8, 8))]}),
        ("run", {"config": "m", "set": {"a.b": [1, 8], "c": None}}, {"set": ["a.b=[1, 8]", "c=null"]}),
        ("run", {"config": "m", "set": "a.b=1"}, {"set": ["a.b=1"]}),
        ("bench", {"models": ["a", "b"], "batch": [1, 4], "rounds": 6}, {"models": ["a", "b"], "batch": [1, 4]}),
        ("bench", {"models": ["a"], "targets": "ort-cpu"}, {"targets": ["ort-cpu"]}),
        ("bench", {"models": ["a"], "session": {"threads": 1, "spinning": False}},
         {"session": [{"threads": "1", "spinning": "false"}]}),
        ("bench", {"models": ["-a"], "timeout": -1.5}, {"models": ["-a"], "timeout": -1.5}),
    ],
)  # fmt: skip
def test_keywords_are_the_options_of_the_command(
    command: str, keywords: dict[str, Any], expected: dict[str, Any]
) -> None:
    needs.every_wing()
    options = vars(options_for(command, keywords))
    assert options | expected == options


@pytest.mark.parametrize(
    ("command", "keywords", "message"),
    [
        ("run", {"config": "m", "minuts": 3}, "run: unknown option 'minuts'; available: fresh, minutes, out, config"),
        ("run", {"config": "m", "dry_run": True}, "run: unknown option 'dry_run'"),
        ("run", {"config": "m", "task": "cooking"}, "run: argument --task: invalid choice: 'cooking'"),
        ("bench", {"models": ["m"], "rounds": 2}, "argument --rounds: '2' is not a whole number of at least 6"),
        ("bench", {"models": []}, "bench: the following arguments are required: MODEL"),
        ("bench", {"models": ["m"], "json": True}, "bench: unknown option 'json'"),
    ],
)
def test_wrong_keyword_is_one_error(command: str, keywords: dict[str, Any], message: str) -> None:
    needs.every_wing()
    with pytest.raises(gauntlet.ConfigError, match=re.escape(message)):
        options_for(command, keywords)


def test_home_is_that_of_the_call_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAUNTLET_HOME", raising=False)
    with home_for(tmp_path) as home:
        assert home.root == tmp_path
        assert os.environ["GAUNTLET_HOME"] == str(tmp_path)
    assert "GAUNTLET_HOME" not in os.environ
    with pytest.raises(gauntlet.ConfigError, match="there is no report of a finished run"):
        gauntlet.show(home=tmp_path)


def test_missing_extra_is_named_with_its_fix() -> None:
    missing = r"needs mlflow, which is not installed; install it with"
    with pytest.raises(gauntlet.ConfigError, match=missing), home_for(None):
        raise ModuleNotFoundError("No module named 'mlflow'", name="mlflow")
    with pytest.raises(ModuleNotFoundError), home_for(None):
        raise ModuleNotFoundError("No module named 'nothing'", name="nothing")


def test_command_of_a_removed_wing_names_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = EntryPoint("call.bench", "wings.nowhere.bench_command:measured", kinds.GROUP)
    own = EntryPoint("function.bench", "wings.python_api.functions:bench", kinds.GROUP)
    monkeypatch.setattr(kinds, "points", lambda: (gone, own))
    kinds.kinds.cache_clear()
    with pytest.raises(gauntlet.ConfigError, match=r"gauntlet\.bench: call\.bench is in wings\.nowhere\.bench_command"):
        gauntlet.bench("model.onnx", home=folder)
    kinds.kinds.cache_clear()


@pytest.mark.slow
def test_diagnosis_finds_what_the_command_finds(folder: Path) -> None:
    needs.every_wing()
    proto = exported_models.convolutions(11)
    [finding] = gauntlet.diagnose(proto, home=folder, timeout=100).findings
    assert finding.fault == "old_opset"
    assert gauntlet.diagnose(proto, home=folder, timeout=100, fix=folder / "fixed.onnx").findings == ()
    with pytest.raises(gauntlet.ConfigError, match="no such file"):
        gauntlet.diagnose(folder / "none.onnx", home=folder)


def test_page_has_everything_that_is_public() -> None:
    named = set(re.findall(r"^## gauntlet\.(\w+)$|^\| `gauntlet\.(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert {function or error for function, error in named} == {*gauntlet.__all__}
    for name in gauntlet.__all__:
        assert hasattr(gauntlet, name)
    functions = [name for name in gauntlet.__all__ if not isinstance(getattr(gauntlet, name), type)]
    assert all(any(f"gauntlet.{name}(" in example for example in EXAMPLES) for name in functions)
