"""A chain with a wrong pass of the user's own, and why the losers lost, in what a run leaves behind."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from harness import journal, quick_config

from configs.schema import PipelineConfig
from flows.cli.console import reasons as printed_reasons
from flows.record.home import Home
from gauntlet.core.run_report import CAUSE_SEPARATOR, RunReport
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown

Run = Callable[[PipelineConfig], RunReport]

SPOIL = """
from onnx import numpy_helper


def spoil(model):
    for weight in model.graph.initializer:
        if len(weight.dims) == 4:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.5, weight.name))
            break
    return model
"""


@pytest.mark.slow
def test_run_names_the_wrong_pass_and_says_why_a_candidate_is_not_faster(run: Run, home: Home, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SPOIL)
    own = f"{{kind: python, function: mine:spoil, code_folder: {tmp_path}}}"
    report = run(quick_config(f"optimize=[{{kind: chain, passes: [{own}, {{kind: onnxsim}}]}}]"))
    assert report.verdict == "passed", report.reason
    entry = report.stage("optimize", "passes")
    assert entry is not None
    (broken,) = (check for check in entry.checks if check.name == "optimize.broken_passes")
    assert (broken.value, broken.passed) == (1, False)
    assert "spoil at Conv '" in broken.detail
    failing = home.store.path(entry.artifacts["failing-spoil"])
    assert [node.op_type for node in onnx.load(failing).graph.node] == ["Conv"]
    events = journal(home.runs / report.run_id)
    sent = [e for e in events if (e["op"], e.get("run")) == ("artifact", "passes")]
    (folder,) = (e["folder"] for e in sent if home.root / e["path"] == failing)
    assert folder == "artifacts/optimize/failing-spoil"
    assert {path.name for path in failing.parent.iterdir()} == {"failing.onnx", "after.onnx", "inputs.npz"}
    reasons = {c.name: c.reason for c in report.candidates}
    assert "ConvInteger" in reasons["dynamic-s8"].partition(CAUSE_SEPARATOR)[2]
    assert "ConvInteger" in render_markdown(report)
    assert "ConvInteger" in render_html(report)
    assert "Graph passes of passes (2)" in render_html(report)
    assert any("ConvInteger" in reason for reason in printed_reasons(report))
