"""A run with preprocessing in the graph: one more candidate, and whatever wins is shipped with its own data."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bundles import png
from harness import quick_config

import gauntlet
from configs.schema import PipelineConfig
from flows.record.home import Home
from gauntlet.core.run_report import RunReport

pytestmark = pytest.mark.slow
Run = Callable[[PipelineConfig], RunReport]
SETTINGS = ("preprocess_in_graph=true", "optimize=[]", "quantize=[{kind: static, reduce_range: true}]")


def test_candidate_passes_every_gate_and_the_bundle_is_the_winners(run: Run, home: Home, tmp_path: Path) -> None:
    report = run(quick_config(*SETTINGS))
    assert report.verdict == "passed", report.reason
    candidate = next(one for one in report.candidates if one.name.endswith("-uint8"))
    assert [entry.stage for entry in report.stages if entry.candidate == candidate.name] == [
        "preprocess",
        "structure",
        "accuracy",
        "from_images",
    ]
    assert not [
        check for entry in report.stages if entry.candidate == candidate.name for check in entry.checks if check.blocks
    ]
    raced = report.stage("from_images", candidate.name)
    packaged = report.stage("package")
    won = raced.facts["from_images"]["won"]
    assert report.winner == (candidate.name if won else candidate.parent)
    assert candidate.status == ("accepted" if won else "rejected")
    assert candidate.benchmark[0].target == "ort-cpu"
    predictor = gauntlet.load(home.store.path(packaged.artifacts["bundle"]))
    [inputs] = predictor.bundle.golden().inputs.values()
    assert inputs.dtype == (np.uint8 if won else np.float32)
    assert predictor(png(0)).top[0].label == "0"
