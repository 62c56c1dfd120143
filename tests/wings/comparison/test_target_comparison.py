"""One race over models and targets: what is not here, broken, or not what it says costs itself only."""

import json
import math
import sys
from pathlib import Path
from typing import ClassVar

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
from validated_target import OfFramework

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.race.contender import Plan
from gauntlet.targets import OrtCpu
from gauntlet.targets.base import BaseTarget, Precision
from wings.comparison.library.random_inputs import random_inputs
from wings.comparison.library.target_comparison import BenchResult, compare_targets
from wings.providers.openvino import OpenVino

pytestmark = pytest.mark.slow
PLAN = Plan(batch_sizes=(1, 3), rounds=6, block_ms=1, threads=1, timeout_s=60, restarts=False)


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


def go(tmp_path: Path, models: dict[str, Path], *targets: BaseTarget, plan: Plan = PLAN) -> BenchResult:
    samples = random_inputs(next(iter(models.values())), 3)
    return compare_targets(models, targets, samples, tmp_path, plan)


def test_only_what_is_what_it_says_is_ranked(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    models = {"cnn": model, "broken": tmp_path / "broken.onnx"}
    found = go(tmp_path, models, OrtCpu(), Liar(), DiesLater(), OpenVino(), OfFramework())
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
        "source on of-framework": "not applicable",
    }
    assert found.reference == "cnn on ort-cpu"
    assert [row.batch for row in by_name["cnn on ort-cpu"].rows] == [1, 3]
    assert "target.sqnr_above" in by_name["cnn on liar"].reason
    assert "signal 11" in by_name["cnn on dies-later"].reason
    assert "not a readable ONNX model" in by_name["broken on ort-cpu"].reason
    assert not any(pair.rows for pair in found.pairs if pair.status != "measured")
    assert not any("\n" in pair.reason for pair in found.pairs)
    truth = by_name["cnn on ort-cpu"].validation
    assert [check.name for check in truth.checks] == ["target.macs_share", "target.sqnr", "target.repeatability"]
    assert {batch: len(times) for batch, times in by_name["cnn on ort-cpu"].round_medians_ms.items()} == {1: 6, 3: 6}
    assert BenchResult.model_validate_json(found.model_dump_json()).pairs[0].rows == found.pairs[0].rows


def test_next_pair_is_the_reference_when_the_first_breaks_in_the_race(tmp_path: Path, model: Path) -> None:
    found = go(tmp_path, {"cnn": model}, DiesLater(), OrtCpu())
    assert [pair.status for pair in found.pairs] == ["failed", "measured"]
    assert found.reference == "cnn on ort-cpu"
    assert {row.verdict for row in found.pairs[1].rows} == {"reference"}
    assert math.isnan(found.aa_deviation)


@pytest.mark.parametrize("first", ["fine", "picky"])
def test_pair_keeps_the_batch_sizes_that_it_was_measured_at(tmp_path: Path, first: str) -> None:
    for name, most in (("fine", 3), ("picky", 1)):
        onnx.save(faulty_models.picky(most, 1), tmp_path / f"{name}.onnx")
    models = {name: tmp_path / f"{name}.onnx" for name in sorted(("fine", "picky"), reverse=first == "picky")}
    found = go(tmp_path, models, OrtCpu())
    fine, picky = (next(pair for pair in found.pairs if pair.candidate == name) for name in ("fine", "picky"))
    assert [pair.status for pair in found.pairs] == ["measured", "measured"]
    assert picky.reason.startswith("batch 3: ")
    assert [row.batch for row in picky.rows] == [*picky.round_medians_ms] == [1]
    assert [row.batch for row in fine.rows] == [1, 3]
    assert found.reference == f"{first} on ort-cpu"
    assert found.failed == (picky,)
    assert fine.rows[1].verdict == "reference"
    assert (fine.rows[0].verdict == "reference") == (first == "fine")
    assert not math.isnan(found.aa_deviation)


def test_nothing_is_raced_when_nothing_can_run(tmp_path: Path, model: Path) -> None:
    found = go(tmp_path, {"cnn": model}, Liar())
    assert found.reference is None
    assert found.machine is None
    assert len(found.failed) == 1


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


def test_random_inputs_have_the_model_s_names_types_and_shapes(tmp_path: Path) -> None:
    text = "m (float[batch,3,4] x, int64[batch,5] ids, bool[batch] on) => (float[batch,3,4] x) {}"
    onnx.save(onnx_text.model(text), tmp_path / "m.onnx")
    made = random_inputs(tmp_path / "m.onnx", 7)
    assert {name: (array.shape, array.dtype.name) for name, array in made.items()} == {
        "x": ((7, 3, 4), "float32"), "ids": ((7, 5), "int64"), "on": ((7,), "bool"),
    }  # fmt: skip
    assert set(np.unique(made["ids"])) == {0, 1}
    assert json.dumps(made["x"].tolist()) == json.dumps(random_inputs(tmp_path / "m.onnx", 7)["x"].tolist())


def test_random_inputs_ask_for_a_shape_that_the_file_leaves_open(tmp_path: Path) -> None:
    onnx.save(onnx_text.model("m (float[batch,w] x) => (float x) {}"), tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=r"'x' is \[batch, w\].*--shape x=3x224x224"):
        random_inputs(tmp_path / "m.onnx", 2)
    assert random_inputs(tmp_path / "m.onnx", 2, {"x": (9,)})["x"].shape == (2, 9)
    with pytest.raises(ConfigError, match="--shape z: unknown input; available: x"):
        random_inputs(tmp_path / "m.onnx", 2, {"z": (9,)})


def test_random_inputs_are_whole_where_there_is_no_common_batch(tmp_path: Path) -> None:
    onnx.save(onnx_text.model("m (float[2,8] state, float step) => (float[2,8] state) {}"), tmp_path / "m.onnx")
    made = random_inputs(tmp_path / "m.onnx", 3)
    assert {name: array.shape for name, array in made.items()} == {"state": (3, 2, 8), "step": (3,)}
