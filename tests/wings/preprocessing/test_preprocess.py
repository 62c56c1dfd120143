"""The candidate from images: a wrong mean or channel order fails the gate, and it wins where it is proven faster."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from bundles import confirmation, png
from harness import quick_config
from image_models import how, image_model, images
from pydantic import ValidationError

import gauntlet
from configs.schema import PipelineConfig
from flows.record.home import Home
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed, StageError
from gauntlet.core.report import Report
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.datasets.image_arrays import ImageArraySplit, ImageTransform
from gauntlet.datasets.splits import ArraySplit, Split
from gauntlet.images.preprocessing import preprocess_batch
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.race.budget import NO_BUDGET, Budget
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.accuracy import AccuracyConfig, accuracy
from tasks.benchmark.config import BenchmarkConfig
from tasks.quantize.dynamic import DynamicInt8
from tasks.select import SelectConfig
from wings.preprocessing.library.from_images import ImageDecision, from_images
from wings.preprocessing.library.image_input import add_image_input
from wings.preprocessing.library.preprocess import preprocess, prove

if TYPE_CHECKING:
    from conftest import Trained

LIMITS = Tolerances(samples=8)


def run(out: Workspace, proto: onnx.ModelProto, inputs: np.ndarray, test: Split | None = None) -> Report[Any]:
    """Run the stage on a model, with its own outputs as the golden ones."""
    path = out.folder / "given.onnx"
    onnx.save(proto, path)
    outputs = batched_inference(open_session(path), {"x": inputs}).run(4)
    Golden({"real": GoldenCase({"x": inputs}, outputs)}, outputs).save(out.folder / "given.npz")
    split = (test or ArraySplit({"x": inputs}, np.arange(len(inputs)) % 5)).save(out.folder, "given-test")
    model, golden, kept = (out.store_file(file) for file in (path, out.folder / "given.npz", split))
    return preprocess(LIMITS, out, model=model, golden=golden, test=kept)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("batch", ["n", 4])
def test_model_and_data_take_images_afterwards(workspace: Callable[..., Workspace], layout: str, batch: Any) -> None:
    out, pixels, plain = workspace(), images(8), how(channel_order="BGR")
    inputs = preprocess_batch(pixels, plain, layout)  # type: ignore[arg-type]
    report = run(out, image_model(plain, layout, batch=batch), inputs)
    assert not report.failures
    assert report.facts.rounding < 1e-3
    assert report.facts.input_error == 0
    assert report.facts.operators == (
        "Gather",
        *(("Transpose",) if layout == "NCHW" else ()),
        "Cast",
        "Mul",
        "Sub",
        "Div",
    )
    golden = Golden.load(out.path(report.artifacts["golden"]))
    split = read_split(out.path(report.artifacts["test"]))
    for found in (golden.real.inputs["image"], split.take(slice(None))["image"]):
        assert np.array_equal(found, pixels)
    assert split.labels is not None and split.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    session = open_session(out.path(report.artifacts["model"]))
    outputs = batched_inference(session, golden.real.inputs).run(4)["y"]
    np.testing.assert_allclose(outputs, golden.test_outputs["y"], atol=1e-5)


def test_images_of_a_split_are_still_read_when_they_are_needed(workspace: Callable[..., Workspace]) -> None:
    pixels = images(8)
    test = ImageArraySplit(pixels, np.zeros(8, np.int64), ImageTransform(how=how(), layout="NCHW", name="x"))
    out = workspace()
    report = run(out, image_model(how()), preprocess_batch(pixels, how(), "NCHW"), test)
    split = read_split(out.path(report.artifacts["test"]))
    assert isinstance(split, ImageArraySplit)
    assert np.array_equal(split.take(slice(0, 3))["image"], pixels[:3])


@pytest.mark.parametrize(
    "wrong",
    [{"mean": (0.48, 0.45, 0.42)}, {"mean": (0.45, 0.48, 0.41)}, {"std": (0.23, 0.22, 0.27)}, {"channel_order": "BGR"}],
)
def test_wrong_mean_or_channel_order_in_the_graph_fails_the_gate(tmp_path: Path, wrong: dict[str, Any]) -> None:
    proto = image_model(how())
    onnx.save(proto, tmp_path / "host.onnx")
    add_image_input(proto, Signature.read(proto).replace(preprocessing=how(**wrong)))
    onnx.save(proto, tmp_path / "graph.onnx")
    checks = prove(tmp_path / "host.onnx", tmp_path / "graph.onnx", images(4), LIMITS).checks(LIMITS)
    assert {check.name for check in checks if check.blocks} == {
        "preprocess.max_input_error",
        "preprocess.wrong_outputs",
    }


def test_network_that_was_changed_beside_it_fails_the_gate(tmp_path: Path) -> None:
    proto = image_model(how())
    onnx.save(proto, tmp_path / "host.onnx")
    add_image_input(proto, Signature.read(proto))
    bias = next(tensor for tensor in proto.graph.initializer if tensor.name == "b")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.float32(0.01), "b"))
    onnx.save(proto, tmp_path / "graph.onnx")
    checks = prove(tmp_path / "host.onnx", tmp_path / "graph.onnx", images(4), LIMITS).checks(LIMITS)
    assert [check.name for check in checks if check.blocks] == ["preprocess.wrong_outputs"]


def test_inputs_that_are_no_images_fail_the_gate(workspace: Callable[..., Workspace]) -> None:
    noise = np.random.default_rng(0).standard_normal((8, 3, 8, 6)).astype(np.float32) * 3
    report = run(workspace(), image_model(how()), noise)
    assert [check.name for check in report.failures] == ["preprocess.max_rounding"]


def test_model_without_a_preprocessing_is_refused_with_the_reason(workspace: Callable[..., Workspace]) -> None:
    proto = image_model(how())
    Signature.read(proto).replace(preprocessing=None).write(proto)
    with pytest.raises(GateFailed, match="stays outside of the graph: the signature describes no preprocessing"):
        run(workspace(), proto, preprocess_batch(images(8), how(), "NCHW"))


def test_quantized_file_of_a_real_network_keeps_its_accuracy(
    trained: "Trained", workspace: Callable[..., Workspace]
) -> None:
    out = workspace(trained.store)
    DynamicInt8().quantize(trained.path, None, None, out.folder / "int8.onnx")
    quantized = onnx.load(out.folder / "int8.onnx")
    Signature.read(trained.proto()).write(quantized)
    onnx.save(quantized, out.folder / "int8.onnx")
    model = out.store_file(out.folder / "int8.onnx")
    report = preprocess(Tolerances(), out, model=model, golden=trained.golden, test=trained.test)
    assert not report.failures
    assert 0 < report.facts.rounding < 0.501  # digits are enlarged to 32x32 pixels
    made = report.artifacts
    found, before = (
        accuracy(AccuracyConfig(), workspace(trained.store), model=one, golden=golden, test=test).facts
        for one, golden, test in ((made["model"], made["golden"], made["test"]), (model, trained.golden, trained.test))
    )
    assert found.accuracy == pytest.approx(before.accuracy, abs=0.01)
    assert found.integer_share is not None


def test_name_of_the_candidate_from_images_is_taken() -> None:
    chain = {"kind": "chain", "name": "static-u8s8-uint8"}
    values = {"optimize": [chain], "quantize": [{"kind": "static"}]}
    assert not PipelineConfig.model_validate(values).preprocess_in_graph  # type: ignore[attr-defined]
    with pytest.raises(ValidationError, match="two candidates named 'static-u8s8-uint8'"):
        PipelineConfig.model_validate(values | {"preprocess_in_graph": True})


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
def test_candidate_passes_every_gate_and_the_bundle_is_the_winners(run: Run, home: Home) -> None:
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
