"""Which models race on which targets, and why the others do not."""

from pathlib import Path
from typing import ClassVar

import pytest

from gauntlet.core.errors import StageError
from gauntlet.race.contender import Plan
from gauntlet.race.target_examiner import TargetExaminer
from gauntlet.targets import OpenVino, OrtCpu
from gauntlet.targets.base import BaseTarget, FrameworkTarget


class OfFramework(FrameworkTarget):
    """A target that runs its framework's own file."""

    kind: str = "of-framework"
    engine: ClassVar[str] = "nowhere"
    model_suffixes: ClassVar[tuple[str, ...]] = (".own",)


PLAN = Plan(batch_sizes=(1,), rounds=6, block_ms=1, threads=1, timeout_s=60)


@pytest.fixture(scope="module")
def examiner(tmp_path_factory: pytest.TempPathFactory, model: Path, inputs: Path) -> TargetExaminer:
    broken, framework_model = (tmp_path_factory.mktemp("files") / name for name in ("broken.onnx", "model.own"))
    broken.write_bytes(b"broken")
    models = {"fp32": model, "twin": model, "broken": broken}
    return TargetExaminer.from_models(models, inputs, PLAN, framework_model)


def test_model_that_is_validated_can_be_measured(examiner: TargetExaminer) -> None:
    found = examiner.examine("fp32", OrtCpu())
    assert (found.status, found.reason) == ("measured", "")
    assert found.validation is not None
    assert found.validation.sqnr_db > 110


@pytest.mark.parametrize(
    ("name", "target", "status", "reason"),
    [
        ("broken", OrtCpu(), "failed", "not a readable ONNX model"),
        ("fp32", OpenVino(precision="int8"), "not applicable", "runs only quantized models"),
        ("twin", OfFramework(), "not applicable", "runs only the framework's own model"),
    ],
)
def test_model_is_not_measured_with_a_reason(
    examiner: TargetExaminer, monkeypatch: pytest.MonkeyPatch, name: str, target: BaseTarget, status: str, reason: str
) -> None:
    monkeypatch.setattr(type(target), "unavailable", lambda _: None)
    found = examiner.examine(name, target)
    assert (found.status, found.validation) == (status, None)
    assert reason in found.reason


def test_target_of_a_framework_runs_its_own_file_and_others_the_model(examiner: TargetExaminer) -> None:
    assert examiner.file("fp32", OfFramework()).name == "model.own"
    assert examiner.file("fp32", OrtCpu()) == examiner.models["fp32"]


def test_target_that_is_unavailable_says_why(examiner: TargetExaminer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrtCpu, "unavailable", lambda _: "no such processor")
    found = examiner.examine("fp32", OrtCpu())
    assert (found.status, found.reason) == ("unavailable", "no such processor")


def test_reference_that_cannot_run_is_refused(tmp_path: Path, inputs: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    with pytest.raises(StageError, match=r"broken\.onnx: not a readable"):
        TargetExaminer.from_models({"fp32": tmp_path / "broken.onnx"}, inputs, PLAN)
