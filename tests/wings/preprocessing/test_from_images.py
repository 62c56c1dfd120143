"""From image to output: the candidate wins where it is proven faster, and loses with its reason everywhere else."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundles import confirmation, png
from harness import quick_config
from image_models import how, image_model, images

import gauntlet
from configs.schema import PipelineConfig
from flows.record.home import Home
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.race.budget import NO_BUDGET, Budget
from tasks.benchmark.config import BenchmarkConfig
from tasks.select import SelectConfig
from wings.preprocessing.library.from_images import ImageDecision, from_images
from wings.preprocessing.library.image_input import add_image_input

Race = Callable[..., Report[ImageDecision]]
QUICK = BenchmarkConfig(rounds=6, block_ms=3, threads=1, batch_sizes=(1, 2), restart_processes=False, profile=False)


def keep(out: Workspace, name: str, proto: onnx.ModelProto) -> Artifact:
    onnx.save(proto, out.folder / f"{name}.onnx")
    return out.store_file(out.folder / f"{name}.onnx")


@pytest.fixture
def raced(workspace: Callable[..., Workspace]) -> Race:
    """Race a small model with its preprocessing on the host against the same with it in the graph."""

    def run(min_speedup: float, budget: Budget | None = None, broken: bool = False) -> Report[ImageDecision]:
        out, plain = workspace(), image_model(how())
        reference, winner = keep(out, "fp32", plain), keep(out, "winner", plain)
        add_image_input(plain, Signature.read(plain))
        if broken:
            plain.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
        pixels = images(3)
        outputs = {"y": np.zeros((3, 5), np.float32)}
        Golden({"real": GoldenCase({"image": pixels}, outputs)}, outputs).save(out.folder / "golden.npz")
        return from_images(
            SelectConfig(min_speedup=min_speedup),
            out,
            decision=confirmation("winner"),
            benchmark=QUICK,
            models={"fp32": reference, "winner": winner, "winner-uint8": keep(out, "uint8", plain)},
            golden=out.store_file(out.folder / "golden.npz"),
            budget=budget or NO_BUDGET,
        )

    return run


@pytest.mark.slow
def test_every_side_is_timed_from_the_image_and_the_decision_follows_from_the_interval(raced: Race) -> None:
    report = raced(1.0)
    facts = report.facts.from_images
    assert [row.batch for row in facts.rows] == [1, 2]
    assert facts.required_speedup >= 1
    assert facts.won == (facts.against.speedup_low > facts.required_speedup)
    assert report.facts.winner == ("winner-uint8" if facts.won else "winner")
    assert not report.failures


def test_candidate_that_is_not_proven_faster_by_the_margin_loses(raced: Race) -> None:
    report = raced(1000.0)
    facts = report.facts.from_images
    assert not facts.won
    assert report.facts.winner == "winner"
    assert "not proven more than 1e+03x faster" in facts.reason
    [check] = [check for check in report.checks if check.name == "from_images.min_speedup"]
    assert not check.passed and not check.blocks  # the winner stays


@pytest.mark.slow
def test_candidate_over_the_budget_loses(raced: Race) -> None:
    facts = raced(1.0, budget=Budget(max_size_mb=1e-6)).facts.from_images
    assert not facts.won
    assert facts.reason.startswith("over the budget (max_size_mb")


@pytest.mark.slow
def test_model_that_cannot_run_on_the_images_ends_the_race(raced: Race) -> None:
    with pytest.raises(StageError, match=r"winner-uint8' cannot be measured from images"):
        raced(1.0, broken=True)


Run = Callable[[PipelineConfig], RunReport]
SETTINGS = ("preprocess_in_graph=true", "optimize=[]", "quantize=[{kind: static, reduce_range: true}]")


@pytest.mark.slow
def test_candidate_passes_every_gate_and_the_bundle_is_the_winners(run: Run, home: Home, tmp_path: Path) -> None:
    report = run(quick_config(*SETTINGS))
    assert report.verdict == "passed", report.reason
    candidate = next(one for one in report.candidates if one.name.endswith("-uint8"))
    expected = ["preprocess", "structure", "accuracy", "from_images"]
    assert [entry.stage for entry in report.stages if entry.candidate == candidate.name] == expected
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
