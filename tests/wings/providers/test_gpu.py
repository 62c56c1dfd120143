"""Targets of an NVIDIA GPU, really run where there is one; elsewhere each test is skipped with the target's reason."""

from pathlib import Path

import faulty_models
import numpy as np
import onnx
import pytest

from gauntlet.race.contender import Entry, Plan
from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.table import run_race
from gauntlet.race.target_validation import validate_target
from gauntlet.targets import OrtCpu, default_targets
from gauntlet.targets.base import BaseTarget
from wings.providers.accelerators import OrtCuda

pytestmark = pytest.mark.gpu
FLOAT = [t for t in default_targets() if t.kind in ("ort-cuda", "ort-tensorrt") and t.declared_precision != "int8"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(faulty_models.cnn(), tmp_path / "cnn.onnx")
    return tmp_path / "cnn.onnx"


def samples() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((4, 3, 16, 16), dtype=np.float32)}


def skip_where_it_cannot_run(target: BaseTarget) -> None:
    if why := target.unavailable():
        pytest.skip(f"{target.name}: {why}")


@pytest.mark.parametrize("target", FLOAT, ids=lambda t: t.name)
def test_target_runs_everything_on_the_gpu_in_the_precision_that_it_states(target, model: Path, tmp_path: Path) -> None:
    skip_where_it_cannot_run(target)
    np.savez(tmp_path / "in.npz", **samples())
    expected = ExpectedOutputs.of(model, tmp_path / "in.npz", 60)
    truth = validate_target(model, target, expected, tmp_path / "in.npz", threads=1, timeout_s=300)
    assert truth.reason is None
    assert truth.macs_share == 1


def test_gpu_races_the_processor_with_its_tensors_in_its_own_memory(model: Path, tmp_path: Path) -> None:
    skip_where_it_cannot_run(OrtCuda())
    np.savez(tmp_path / "in.npz", **samples())
    plan = Plan(batch_sizes=(1, 4), rounds=6, block_ms=5, threads=1, timeout_s=100)
    entries = {target.name: Entry.on_target(model, target) for target in (OrtCpu(), OrtCuda())}
    table = run_race(entries, plan, "ort-cpu", inputs=tmp_path / "in.npz")
    assert not table.failures
    assert {name: len(rows) for name, rows in table.rows.items()} == dict.fromkeys(entries, 2)
