"""One race over models and targets: what is not here, broken, or not what it says costs itself only."""

import math
import sys
from pathlib import Path
from typing import ClassVar

import faulty_models
import numpy as np
import onnx
import pytest

from gauntlet.benchmarking.contender import RacePlan
from gauntlet.benchmarking.target_comparison import BenchResult, compare_targets
from gauntlet.core.errors import StageError
from gauntlet.datasets.random_inputs import random_inputs
from gauntlet.targets import OpenVino, OrtCpu, OrtCuda, TorchEager
from gauntlet.targets.base import BaseTarget, Precision

PLAN = RacePlan(batch_sizes=(1, 3), rounds=6, block_ms=1, threads=1, timeout_s=60)


class Liar(OrtCpu):
    """It says bfloat16 and computes in float32."""

    @property
    def name(self) -> str:
        return "liar"

    @property
    def declared_precision(self) -> Precision:
        return "bf16"


class DiesLater(BaseTarget):
    """It passes the examination, and is killed by its second model's run of the race."""

    kind: str = "dies-later"
    engine: ClassVar[str] = "gauntlet.runtime.engines.ort"

    def command(self) -> tuple[str, ...]:
        code = "import os; from gauntlet.runtime.worker import Worker, serve; import sys\n"
        code += "Worker.run = lambda *_, **__: os.kill(os.getpid(), 11)\nserve(sys.stdin, sys.stdout)"
        return (sys.executable, "-c", code)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(faulty_models.cnn(), tmp_path / "cnn.onnx")
    return tmp_path / "cnn.onnx"


def go(tmp_path: Path, models: dict[str, Path], *targets: BaseTarget, plan: RacePlan = PLAN) -> BenchResult:
    samples = random_inputs(next(iter(models.values())), 3)
    return compare_targets(models, targets, samples, tmp_path, plan)


def test_only_what_is_what_it_says_is_ranked(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    models = {"cnn": model, "broken": tmp_path / "broken.onnx"}
    found = go(tmp_path, models, OrtCpu(), Liar(), DiesLater(), OpenVino(), TorchEager())
    by_name = {pair.name: pair for pair in found.pairs}
    assert {name: pair.status for name, pair in by_name.items()} == {
        "cnn on ort-cpu": "measured",
        "broken on ort-cpu": "failed",
        "cnn on liar": "failed",
        "broken on liar": "failed",
        "cnn on dies-later": "failed",
        "broken on dies-later": "failed",
        "cnn on openvino-f32": "unavailable",
        "broken on openvino-f32": "unavailable",
        "source on torch-eager": "not applicable",
    }
    assert found.reference == "cnn on ort-cpu"
    assert [row.batch for row in by_name["cnn on ort-cpu"].rows] == [1, 3]
    assert "target.sqnr_above" in by_name["cnn on liar"].reason
    assert "signal 11" in by_name["cnn on dies-later"].reason
    assert "not a readable ONNX model" in by_name["broken on ort-cpu"].reason
    assert not any(pair.rows for pair in found.pairs if pair.status != "measured")
    assert not any("\n" in pair.reason for pair in found.pairs)
    truth = by_name["cnn on ort-cpu"].validation
    assert truth is not None
    assert [check.name for check in truth.checks] == ["target.macs_share", "target.sqnr", "target.repeatability"]
    for point in by_name["cnn on ort-cpu"].latency:
        assert 0 < point.low_ms <= point.middle_ms <= point.high_ms
    assert BenchResult.model_validate_json(found.model_dump_json()).pairs[0].latency == found.pairs[0].latency


def test_cuda_that_is_the_cpu_is_never_ranked(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where nobody had asked whether it is available."""
    if OrtCuda().unavailable() is None:
        pytest.skip("CUDA runs here")
    monkeypatch.setattr(OrtCuda, "unavailable", lambda _: None)
    found = go(tmp_path, {"cnn": model}, OrtCuda(), OrtCpu())
    assert [pair.status for pair in found.pairs] == ["failed", "measured"]
    assert "target.macs_share: 0 must be >= 0.99" in found.pairs[0].reason
    assert found.reference == "cnn on ort-cpu"


def test_next_pair_is_the_reference_when_the_first_breaks_in_the_race(tmp_path: Path, model: Path) -> None:
    found = go(tmp_path, {"cnn": model}, DiesLater(), OrtCpu())
    assert [pair.status for pair in found.pairs] == ["failed", "measured"]
    assert found.reference == "cnn on ort-cpu"
    assert {row.verdict for row in found.pairs[1].rows} == {"reference"}
    assert math.isnan(found.aa_deviation)


@pytest.mark.parametrize("first", [pytest.param("fine", marks=pytest.mark.slow), "picky"])
def test_pair_keeps_the_batch_sizes_that_it_was_measured_at(tmp_path: Path, first: str) -> None:
    for name, most in (("fine", 3), ("picky", 1)):
        onnx.save(faulty_models.picky(most, 1), tmp_path / f"{name}.onnx")
    models = {name: tmp_path / f"{name}.onnx" for name in sorted(("fine", "picky"), reverse=first == "picky")}
    found = go(tmp_path, models, OrtCpu())
    fine, picky = (next(pair for pair in found.pairs if pair.model == name) for name in ("fine", "picky"))
    assert [pair.status for pair in found.pairs] == ["measured", "measured"]
    assert picky.reason.startswith("batch 3: ")
    assert [row.batch for row in picky.rows] == [point.batch for point in picky.latency] == [1]
    assert [row.batch for row in fine.rows] == [1, 3]
    assert found.reference == f"{first} on ort-cpu"
    assert found.failed == (picky,)
    assert fine.rows[1].verdict == "reference"
    assert (fine.rows[0].verdict == "reference") == (first == "fine")
    assert not math.isnan(found.aa_deviation)


@pytest.mark.slow
def test_nothing_is_raced_when_nothing_can_run(tmp_path: Path, model: Path) -> None:
    found = go(tmp_path, {"cnn": model}, Liar())
    assert found.reference is None
    assert found.machine is None
    assert len(found.failed) == 1


@pytest.mark.slow
def test_model_with_a_fixed_batch_is_measured_at_that_one(tmp_path: Path) -> None:
    onnx.save(faulty_models.cnn(batch=2), tmp_path / "two.onnx")
    found = go(tmp_path, {"two": tmp_path / "two.onnx"}, OrtCpu())
    assert [row.batch for row in found.pairs[0].rows] == [2]


def test_comparison_is_refused_when_the_first_model_cannot_run(tmp_path: Path, model: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    np.savez(tmp_path / "in.npz", x=np.ones((3, 3, 16, 16), np.float32))
    with pytest.raises(StageError, match=r"broken\.onnx: not a readable"):
        compare_targets({"b": tmp_path / "broken.onnx"}, [OrtCpu()], {"x": np.ones((3, 3, 16, 16))}, tmp_path, PLAN)
    with pytest.raises(StageError, match=r"cnn\.onnx: no samples for the input 'x'"):
        compare_targets({"cnn": model}, [OrtCpu()], {"z": np.ones((3, 3, 16, 16), np.float32)}, tmp_path, PLAN)
