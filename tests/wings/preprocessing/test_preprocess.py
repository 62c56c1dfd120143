"""The candidate with its preprocessing in the graph: a wrong mean or channel order does not pass its gate."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from image_models import how, image_model, images
from pydantic import ValidationError

from configs.schema import PipelineConfig
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.datasets.image_arrays import ImageArraySplit, ImageTransform
from gauntlet.datasets.splits import ArraySplit, Split
from gauntlet.images.preprocessing import preprocess_batch
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.accuracy import AccuracyConfig, accuracy
from tasks.quantize.dynamic import DynamicInt8
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
