"""A pretrained ONNX model is its own reference; data that does not fit is rejected first."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pretrained_models
import pytest
from inferred_configs import classifier
from small_images import write_pictures

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.frameworks.trial_run import try_model
from gauntlet.onnx_model.model_file import checker_error
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.data import data
from tasks.numerics import NumericsConfig, numerics
from tasks.train import train
from tasks.train.facts import TrainFacts
from tasks.train.onnx_pretrained import OnnxModel

Bring = Callable[..., tuple[Report[TrainFacts], Workspace]]
SHARES = {"validation": 0, "calibration": 0.3, "test": 0.7}


@pytest.fixture
def bring(workspace: Callable[..., Workspace], tmp_path: Path) -> Bring:
    def run(model: Path, samples: dict[str, np.ndarray], **config: object) -> tuple[Report[TrainFacts], Workspace]:
        np.savez(tmp_path / "samples.npz", **samples)
        arrays = NpzArrays.model_validate({"path": tmp_path / "samples.npz", "split_fractions": SHARES})
        loaded = data(arrays, workspace())
        out = workspace()
        brought = OnnxModel.model_validate({"model": model} | config)
        return train(brought, out, splits=loaded.artifacts, signature=loaded.facts.signature), out

    return run


@pytest.mark.parametrize("make", pretrained_models.MODELS, ids=lambda make: make.__name__)
def test_brought_model_answers_as_it_came_when_it_is_kept(bring: Bring, tmp_path: Path, make: Callable) -> None:
    model, samples = make(tmp_path)
    report, out = bring(model, samples)
    golden = Golden.load(out.path(report.artifacts["golden"]))
    kept = open_session(out.path(report.artifacts["model"]))
    again = batched_inference(kept, golden.real.inputs).run(3)
    for name, expected in golden.real.outputs.items():
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(again[name], expected, atol=2e-3 if expected.dtype == np.float16 else 1e-6)
        else:
            assert np.array_equal(again[name], expected)
    signature = Signature.read(onnx.load(out.path(report.artifacts["model"]), load_external_data=False))
    assert signature == report.facts.signature
    assert {spec.name for spec in signature.inputs} == set(samples)


def test_golden_outputs_are_as_the_file_says_where_the_runtime_changes_them(bring: Bring, tmp_path: Path) -> None:
    text = """m (float[n,3,8,8] x) => (float[n,3,5,5] y) <int64[8] pads = {0,0,1,1,0,0,1,1}, float zero = {0.0}>
    { p = Pad(x, pads, zero) y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(p) }"""
    onnx.save(onnx_text.model(text), tmp_path / "padded.onnx")
    report, out = bring(tmp_path / "padded.onnx", {"x": np.full((20, 3, 8, 8), -1, np.float32)})
    golden, kept = Golden.load(out.path(report.artifacts["golden"])), out.path(report.artifacts["model"])
    assert golden.real.outputs["y"].max() == 0
    assert batched_inference(open_session(kept), golden.real.inputs).run(3)["y"].max() == -1  # zeros are forgotten


def test_brought_model_is_scored_when_there_are_labels(workspace: Callable[..., Workspace], tmp_path: Path) -> None:
    model, samples = pretrained_models.text_labels(tmp_path)
    truth = batched_inference(open_session(model), samples).run(8)["label"]
    names = ("cat", "dog", "owl")
    numbers = np.array([names.index(str(text)) for text in truth])
    np.savez(tmp_path / "labelled.npz", **samples, labels=numbers)
    out = workspace()
    arrays = NpzArrays.model_validate({"path": tmp_path / "labelled.npz", "split_fractions": SHARES, "labels": names})
    loaded = data(arrays, out)
    report = train(OnnxModel(model=model), out, splits=loaded.artifacts, signature=loaded.facts.signature)
    with np.load(out.path(report.artifacts["predictions"])) as file:
        assert np.array_equal(file["test"], file["test_labels"])
        assert "train" not in file.files
    assert report.facts.signature.primary_output == "label"


def test_answer_is_the_scores_when_labels_are_there_too(bring: Bring, tmp_path: Path) -> None:
    model, samples = pretrained_models.two_inputs(tmp_path)
    assert bring(model, samples)[0].facts.signature.primary_output == "scores"
    assert bring(model, samples, primary_output="hidden")[0].facts.signature.primary_output == "hidden"


def test_parameters_are_weights_of_initializers_and_constants_without_shapes(bring: Bring, tmp_path: Path) -> None:
    text = """m (float[n,2] x) => (float[n,4] y) <int64[2] shape = {-1, 2}, float[2,4] w> {
        v = Reshape(x, shape)  c = Constant <value = float[4] {1, 2, 3, 4}> ()  y = Gemm(v, w, c) }"""
    path = onnx_text.save(tmp_path / "model.onnx", text)
    report, _ = bring(Path(path), {"x": np.ones((40, 2), np.float32)})
    assert report.facts.parameters == 2 * 4 + 4


def test_signature_of_the_file_is_kept_when_it_carries_one(bring: Bring, tmp_path: Path) -> None:
    model, samples = pretrained_models.two_inputs(tmp_path)
    proto = onnx.load(model)
    own = Signature(
        inputs=tuple(TensorSpec(name=n, dtype="float32", shape=("batch", w)) for n, w in (("a", 16), ("b", 8))),
        outputs=tuple(
            TensorSpec(name=n, dtype="float32", shape=("batch", w)) for n, w in (("scores", 4), ("hidden", 8))
        ),
        layout="NHWC",
        labels=("w", "x", "y", "z"),
    )
    own.write(proto)
    onnx.save(proto, model)
    assert bring(model, samples)[0].facts.signature == own.replace(primary_output="scores")


def test_outputs_that_are_no_tensors_are_named_when_they_are_left_out(bring: Bring, tmp_path: Path) -> None:
    check = bring(*pretrained_models.text_labels(tmp_path))[0].checks[0]
    assert (check.name, check.value, check.passed, check.severity) == ("train.ignored_outputs", 1, False, "warning")
    assert "chances" in check.detail
    assert "brought.onnx tensors.onnx --outputs label,scores" in check.remedy


@pytest.mark.parametrize(("names", "is_logit"), [(2, True), (3, False)])
def test_number_beyond_0_to_1_is_the_logit_of_two_classes(
    bring: Bring, tmp_path: Path, names: int, is_logit: bool
) -> None:
    onnx.save(onnx_text.model("m (float[n,1] x) => (float[n,1] z) { z = Neg(x) }"), tmp_path / "model.onnx")
    numbers = np.linspace(-3, 3, 60, dtype=np.float32)[:, None]
    samples = {"x": numbers, "labels": np.arange(60) % names}
    if not is_logit:
        with pytest.raises(StageError, match="no output is known to predict them"):
            bring(tmp_path / "model.onnx", samples)
        return
    report, _ = bring(tmp_path / "model.onnx", samples)
    assert (report.facts.signature.primary_output, report.facts.signature.logit) == ("z", True)


@pytest.mark.parametrize("operator", ["Neg", "Sigmoid"])
def test_scores_of_labels_beyond_0_to_1_are_logits(bring: Bring, tmp_path: Path, operator: str) -> None:
    text = f"m (float[n,3] x) => (float[n,3] z) {{ z = {operator}(x) }}"
    onnx.save(onnx_text.model(text), tmp_path / "model.onnx")
    values = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    report, _ = bring(tmp_path / "model.onnx", {"x": values, "labels": np.int64(values < 0)})
    assert (report.facts.signature.task, report.facts.signature.logit) == ("multi-label", operator == "Neg")


@pytest.mark.parametrize(("weights", "never"), [("1, 1", 0), ("1, nan", 0), ("nan, nan", 1), ("inf, -inf", 1)])
def test_output_without_a_finite_value_fails_its_check(bring: Bring, tmp_path: Path, weights: str, never: int) -> None:
    """Every candidate would agree with it: NaN equals NaN."""
    values = np.array([float(text) for text in weights.split(",")], np.float32)
    proto = onnx_text.model("m (float[n,2] x) => (float[n,2] y, float[n,2] z) { y = Neg(x)  z = Mul(x, w) }")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    report, _ = bring(tmp_path / "model.onnx", {"x": np.full((20, 2), 3, np.float32)})
    (check,) = (check for check in report.checks if check.name == "train.never_finite_outputs")
    assert (check.value, check.passed) == (never, never == 0)
    assert ("no finite number for 14 samples: z" in check.detail) == bool(never)
    assert ("gauntlet inspect MODEL --weights" in check.remedy) == bool(never)


def test_output_that_is_always_empty_fails_the_same_check(bring: Bring, tmp_path: Path) -> None:
    text = "m (float[n,2] x) => (float[n,2] y, float[n,0] z) <int64[1] o = {0}, int64[1] a = {1}>"
    onnx.save(onnx_text.model(f"{text} {{ y = Neg(x)  z = Slice(x, o, o, a) }}"), tmp_path / "model.onnx")
    report, _ = bring(tmp_path / "model.onnx", {"x": np.arange(40, dtype=np.float32).reshape(20, 2)})
    (check,) = (check for check in report.checks if check.name == "train.never_finite_outputs")
    assert check.detail == "no finite number for 14 samples: z"
    assert "gauntlet cut" in check.remedy


@pytest.mark.parametrize(("text", "lost"), [("y = Neg(x)", 14), ("m = IsNaN(x) y = Where(m, w, x)", 0)])
def test_missing_values_that_a_model_answers_with_nan_fail_their_check(
    bring: Bring, tmp_path: Path, text: str, lost: int
) -> None:
    proto = onnx_text.model(f"m (float[n,2] x) => (float[n,2] y) {{ {text} }}")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    samples = np.arange(40, dtype=np.float32).reshape(20, 2)
    samples[:, 1] = np.nan
    report, _ = bring(tmp_path / "model.onnx", {"x": samples})
    checks = [check for check in report.checks if check.name == "train.lost_samples"]
    assert [(check.value, check.passed) for check in checks] == ([(lost, False)] if lost else [])


@pytest.mark.parametrize(
    ("step", "samples_differ", "warned"),
    [(0, True, True), (0, False, False), (1, True, False), (np.nan, True, False)],  # NaN is another check's failure
)
def test_outputs_that_do_not_depend_on_the_samples_are_a_warning(
    bring: Bring, tmp_path: Path, step: float, samples_differ: bool, warned: bool
) -> None:
    """Nothing that is compared with them proves anything."""
    proto = onnx_text.model("m (float[n,2] x) => (float[n,2] y) { z = Mul(x, w)  y = Sigmoid(z) }")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.full(2, step, np.float32), "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    samples = np.arange(40, dtype=np.float32).reshape(20, 2) if samples_differ else np.ones((20, 2), np.float32)
    report, _ = bring(tmp_path / "model.onnx", {"x": samples})
    found = [check for check in report.checks if check.name == "train.constant_outputs"]
    assert len(found) == warned
    for check in found:
        assert (check.passed, check.severity) == (False, "warning")
        assert "the same values for all 14 samples" in check.detail


def test_external_data_is_part_of_the_models_content(tmp_path: Path) -> None:
    model, _ = pretrained_models.external_data(tmp_path)
    assert [f.name for f in OnnxModel(model=model).files()] == ["brought.onnx", "all.bin"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"a": s["a"]}, "no samples for the input 'b'; there are samples for \\['a'\\]"),
        (lambda s: s | {"b": s["b"][:, :5]}, "ONNX Runtime fails on inputs of shape"),
        (lambda s: s | {"b": s["b"][:, 0]}, "1 axes for an input of 2"),
    ],
)
def test_data_that_does_not_fit_is_refused_when_the_model_is_asked(
    bring: Bring, tmp_path: Path, change: Callable, message: str
) -> None:
    model, samples = pretrained_models.two_inputs(tmp_path)
    with pytest.raises(StageError, match=message):
        bring(model, change(samples))


def test_gray_images_are_refused_by_a_model_of_three_channels(workspace, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures", "a", "b", "c")
    gray = ImageFolder(path=pictures, mean=(0.5,), std=(0.5,), image_size=32, input_name="image").load()
    with pytest.raises(ConfigError, match=r"data.mean: length 1, .* image has 3 channels. Fix: give 3 values"):
        OnnxModel(model=classifier(tmp_path / "m.onnx")).fit(gray.splits, gray.signature, workspace())


def test_labels_are_refused_when_no_output_names_a_class(bring: Bring, tmp_path: Path) -> None:
    model, samples = pretrained_models.state(tmp_path)
    assert bring(model, samples, primary_output="h_next")  # without labels nobody asks
    with pytest.raises(StageError, match=r"no output is known to predict them: .*train\.primary_output"):
        bring(model, samples | {"labels": np.zeros(40, np.int64)}, primary_output="h_next")


def test_file_is_refused_by_name_when_it_cannot_be_brought(bring: Bring, tmp_path: Path) -> None:
    model, samples = pretrained_models.external_data(tmp_path)
    with pytest.raises(StageError, match=r"absent\.onnx: not a readable ONNX model"):
        bring(tmp_path / "absent.onnx", samples)
    with pytest.raises(StageError, match=r"the model has no output 'z'; it has \['y'\]"):
        bring(model, samples, primary_output="z")
    proto = onnx.load(model, load_external_data=False)
    for place in ("../../etc/passwd", "/etc/passwd", "weights/absent.bin"):
        for tensor in proto.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = place
        model.write_bytes(proto.SerializeToString())
        with pytest.raises(StageError, match=f"its external data '{place}' is missing, or outside"):
            bring(model, samples)


def test_file_is_refused_with_the_way_out_when_the_runtime_refuses_it(bring: Bring, tmp_path: Path) -> None:
    model = onnx_text.model("odd (float[n] x) => (float[n] y) { y = mine.Nope(x) }", domains={"mine": 1})
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(StageError, match=r"(?s)odd\.onnx: .*refuses the model.*gauntlet diagnose"):
        bring(tmp_path / "odd.onnx", {"x": np.ones(40, np.float32)})


def test_model_is_asked_at_every_size_that_it_is_said_to_take(bring: Bring, tmp_path: Path) -> None:
    model, samples = pretrained_models.any_size(tmp_path)
    lengths = [{"height": 20, "width": 14}, {"height": 7}]
    report, out = bring(model, samples, layout="NCHW", lengths=lengths)
    golden = report.artifacts["golden"]
    cases = Golden.load(out.path(golden)).cases
    assert list(cases) == ["real", "random", "height=20, width=14", "height=7"]
    resized = cases["height=20, width=14"].inputs["x"]
    nearest = [0, 1, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 8, 9]
    assert np.array_equal(resized[:, :, ::2], cases["real"].inputs["x"][: len(resized)][..., nearest])
    assert not numerics(NumericsConfig(), out, model=report.artifacts["model"], golden=golden).failures
    (tmp_path / "optimized").mkdir()
    frozen = out.store_file(pretrained_models.any_size(tmp_path / "optimized", pixels=100)[0])
    failures = numerics(NumericsConfig(), out, model=frozen, golden=golden).failures
    texts = [f"{check.detail} {check.remedy}" for check in failures]
    assert any("silently wrong at height=20, width=14, height=7" in text for text in texts)
    fixed, samples = pretrained_models.fixed_batch(tmp_path)
    with pytest.raises(StageError, match=r"train.lengths: unknown open axis 'height'; available: none"):
        bring(fixed, samples, layout="NCHW", lengths=[{"height": 20}])


def test_output_without_a_shape_is_declared_as_onnx_asks_for(bring: Bring, tmp_path: Path) -> None:
    proto = onnx_text.model(
        "m (float[n,8] x) => (float[n,4] y, float[n,8] z) <float[8,4] w> { y = MatMul(x, w) z = Relu(x) }"
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.output[1].ClearField("type")
    onnx.save(proto, tmp_path / "bare.onnx")
    assert not try_model(tmp_path / "bare.onnx", {}).no_batch_axis
    report, out = bring(tmp_path / "bare.onnx", {"x": np.ones((40, 8), np.float32)})
    assert [spec.shape for spec in report.facts.signature.outputs] == [("n", 4), ("n", 8)]
    assert not checker_error(out.path(report.artifacts["model"]))
