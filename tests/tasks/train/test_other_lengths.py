"""An axis that a brought model leaves open is judged at other lengths than the data's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit
from tasks.accuracy import AccuracyConfig, accuracy
from tasks.train.facts import TrainFacts
from tasks.train.onnx_pretrained import OnnxModel

ExportedProgram = pytest.importorskip("frameworks.torch.brought_program").ExportedProgram

RNG = np.random.default_rng(0)
SAMPLES = RNG.standard_normal((40, 16, 4)).astype(np.float32)
MEAN = "p = ReduceMean<axes = [1], keepdims = 0>(x)"
POOLED = f"m (float[n,t,4] x) => (float[n,3] y) <float[4,3] w> {{ {MEAN} y = MatMul(p, w) }}"
SQUARE = "m (float[n,h,w] x) => (float[n] y) { y = ReduceMean<axes = [1, 2], keepdims = 0>(x) }"
Bring = Callable[..., tuple[Report[TrainFacts], Golden, Workspace]]


@pytest.fixture
def bring(workspace: Callable[..., Workspace], tmp_path: Path) -> Bring:
    def run(model: Any, samples: dict[str, np.ndarray], layout: str = "none") -> tuple[Any, Golden, Workspace]:
        if isinstance(model, str):
            onnx.save(onnx_text.model(model, opset=17), tmp_path / "m.onnx")
            model = OnnxModel(model=tmp_path / "m.onnx")
        specs = [TensorSpec(name=n, dtype=a.dtype.name, shape=("batch", *a.shape[1:])) for n, a in samples.items()]
        signature = Signature(task="arrays", inputs=tuple(specs), outputs=(), layout=layout)
        out = workspace()
        report = model.fit({"test": ArraySplit(samples)}, signature, out)
        return report, Golden.load(out.path(report.artifacts["golden"])), out

    return run


def open_axes(report: Report[TrainFacts]) -> Any:
    return next(check for check in report.checks if check.name == "train.unjudged_axes")


def test_samples_are_cut_along_an_open_axis(bring: Bring) -> None:
    report, golden, _ = bring(POOLED, {"x": SAMPLES})
    assert list(golden.cases) == ["real", "random", "t=8", "t=4", "t=1", "t=32"]
    assert np.array_equal(golden.cases["t=4"].inputs["x"], SAMPLES[:32, :4])
    assert np.array_equal(golden.cases["t=32"].inputs["x"][1], np.concatenate([SAMPLES[1], SAMPLES[0]]))
    assert open_axes(report).detail == "the open axes are judged at t=8; t=4; t=1; t=32"
    assert open_axes(report).passed


def test_length_that_the_source_refuses_is_left_out_and_named(bring: Bring) -> None:
    mean = "y = ReduceMean<axes = [2], keepdims = 0>(c)"
    model = f"m (float[n,4,t] x) => (float[n,2] y) <float[2,4,3] w> {{ c = Conv(x, w) {mean} }}"
    report, golden, _ = bring(model, {"x": SAMPLES.transpose(0, 2, 1)})
    assert list(golden.cases) == ["real", "random", "t=8", "t=4", "t=32"]
    assert open_axes(report).detail.endswith("judged at t=8; t=4; t=32; the model itself refuses t=1")


def test_length_that_a_later_sample_refuses_is_left_out(bring: Bring) -> None:
    picked = "m (float[n,t,4] x, int64[n] last) => (float[n,4] y) <int64[1] one = {1}>"
    place = "p = Unsqueeze(last, one) y = GatherND<batch_dims = 1>(x, p)"
    last = np.r_[np.zeros(5, np.int64), np.full(35, 6)]
    report, golden, _ = bring(f"{picked} {{ {place} }}", {"x": SAMPLES, "last": last})
    assert list(golden.cases) == ["real", "random", "t=8", "t=32"]
    assert "the model itself refuses t=4; t=1" in open_axes(report).detail


def test_axes_are_cut_together_whatever_their_names(bring: Bring) -> None:
    model = "m (float[n,a] x, float[n,b] z) => (float[n,c] y) { y = Add(x, z) }"
    report, golden, _ = bring(model, {"x": SAMPLES[:, :, 0], "z": SAMPLES[:, :, 1]})
    assert list(golden.cases) == ["real", "random", "a=8, b=8", "a=4, b=4", "a=1, b=1", "a=32, b=32"]
    assert golden.cases["a=4, b=4"].outputs["y"].shape == (32, 4)
    assert open_axes(report).passed
    assert "refuses" not in open_axes(report).detail


def test_one_of_two_axes_is_also_halved_alone(bring: Bring) -> None:
    _, golden, _ = bring(SQUARE, {"x": RNG.standard_normal((40, 8, 8)).astype(np.float32)})
    lengths = ["h=4, w=4", "h=4", "h=2, w=2", "h=1, w=1", "h=16, w=16"]
    assert list(golden.cases) == ["real", "random", *lengths]
    assert golden.cases["h=4"].inputs["x"].shape == (32, 4, 8)


def test_axes_are_cut_one_by_one_where_not_all_of_them_can_be(bring: Bring) -> None:
    model = "m (float[n,t,f] x) => (float[n,t,3] y) <float[4,3] w> { y = MatMul(x, w) }"
    report, golden, _ = bring(model, {"x": SAMPLES})
    assert [title for title in golden.cases if title not in ("real", "random")] == ["t=8", "t=4", "t=1", "t=32"]
    assert "the model itself refuses t=8, f=2" in open_axes(report).detail


def test_axis_that_is_open_in_name_only_is_warned_of(bring: Bring) -> None:
    model = "m (float[n,t] x) => (float[n,3] y) <float[16,3] w> { y = MatMul(x, w) }"
    report, golden, _ = bring(model, {"x": SAMPLES[:, :, 0]})
    assert list(golden.cases) == ["real", "random"]
    warning = open_axes(report)
    assert (warning.passed, warning.severity) == (False, "warning")
    assert warning.detail.startswith(
        "the open axes are judged at the length of the data alone; the model itself refuses"
    )


def test_images_are_halved_around_their_center_and_doubled(bring: Bring) -> None:
    images = RNG.standard_normal((8, 3, 12, 8)).astype(np.float32)
    model = "m (float[n,3,h,w] x) => (float[n,3] y) { y = ReduceMean<axes = [2, 3], keepdims = 0>(x) }"
    _, golden, _ = bring(model, {"x": images}, "NCHW")
    assert list(golden.cases) == ["real", "random", "h=6, w=4", "h=6", "h=24, w=16"]
    assert np.array_equal(golden.cases["h=6, w=4"].inputs["x"], images[:, :, 3:9, 2:6])
    assert np.array_equal(golden.cases["h=24, w=16"].inputs["x"], images.repeat(2, axis=2).repeat(2, axis=3))


def test_cut_leaves_out_a_beginning_that_all_samples_share(bring: Bring) -> None:
    samples = SAMPLES.copy()
    samples[:, :6] = 1
    _, golden, _ = bring(POOLED, {"x": samples})
    assert np.array_equal(golden.cases["t=8"].inputs["x"], samples[:32, :8])
    assert np.array_equal(golden.cases["t=4"].inputs["x"], samples[:32, 6:10])


def test_model_with_fixed_axes_has_no_further_cases(bring: Bring) -> None:
    report, golden, _ = bring("m (float[n,16,4] x) => (float[n,16,4] y) { y = Relu(x) }", {"x": SAMPLES})
    assert list(golden.cases) == ["real", "random"]
    assert not [check for check in report.checks if check.name == "train.unjudged_axes"]


def test_open_axes_of_a_program_are_those_of_its_outputs_too(bring: Bring, tmp_path: Path) -> None:
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):  # type: ignore[no-untyped-def]
            return torch.relu(x)

    axes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}}
    torch.export.save(torch.export.export(Net(), (torch.ones(2, 16, 4),), dynamic_shapes=axes), tmp_path / "net.pt2")
    program = ExportedProgram(model=tmp_path / "net.pt2", trust=True)
    report, golden, _ = bring(program, {"x": SAMPLES})
    assert [case.inputs["x"].shape[1] for case in golden.cases.values()] == [16, 16, 8, 4, 1, 32]
    [output] = report.facts.signature.outputs
    assert output.shape == ("batch", "output_1", 4)
    [source] = report.facts.signature.inputs
    _, golden, _ = bring(program.replace(lengths=({source.shape[1]: 40},)), {"x": SAMPLES})
    assert [case.inputs["x"].shape[1] for case in golden.cases.values()] == [16, 16, 40]


LABELED = (
    POOLED.replace("float[n,3] y", "int64[n] y")
    .replace("y = Mat", "l = Mat")
    .replace(") }", ") y = ArgMax<axis = 1, keepdims = 0>(l) }")
)
CUT = "a = Constant<value = int64[1] {0}>() b = Constant<value = int64[1] {16}>() d = Constant<value = int64[1] {1}>() "
CUT += "c = Slice(x, a, b, d)"
FIRST_16 = f"{CUT} {MEAN.replace('(x)', '(c)')}"
BY_16 = "d = Constant<value = int64[1] {1}>() s = ReduceSum<keepdims = 0>(x, d) "
BY_16 += "k = Constant<value = float {16.0}>() p = Div(s, k)"
NAME = "accuracy.min_case_sqnr_db"


@pytest.fixture
def judge(bring: Bring) -> Callable[..., Any]:
    """Return a function that runs the gate on a candidate for a model."""

    def run(candidate: str, source: str = POOLED, samples: np.ndarray = SAMPLES) -> Any:
        report, _, out = bring(source, {"x": samples})
        proto = onnx_text.model(candidate, opset=17)
        report.facts.signature.write(proto)
        onnx.save(proto, out.folder / "candidate.onnx")
        test: Artifact = out.store_file(ArraySplit({"x": samples}).save(out.folder, "test"))
        model = out.store_file(out.folder / "candidate.onnx")
        return accuracy(AccuracyConfig(), out, model=model, golden=report.artifacts["golden"], test=test)

    return run


@pytest.mark.parametrize("model", [POOLED, LABELED])
def test_candidate_is_judged_at_every_length(judge: Callable[..., Any], model: str) -> None:
    report = judge(model, model)
    check = next(check for check in report.checks if check.name == NAME)
    assert check.passed
    assert check.detail.endswith("judged: t=8; t=4; t=1; t=32")


@pytest.mark.parametrize(
    ("source", "mean", "place"), [(POOLED, BY_16, "t=32"), (POOLED, FIRST_16, "t=32"), (LABELED, FIRST_16, "t=32")]
)
def test_candidate_that_is_right_at_the_datas_length_alone_fails(
    judge: Callable[..., Any], source: str, mean: str, place: str
) -> None:
    [failure] = judge(source.replace(MEAN, mean), source).failures
    assert failure.name == NAME
    assert failure.detail.startswith(f"output 'y' at {place}; ")


BY_ROWS = """m (float[n,h,w] x) => (float[n] y) <int64[2] axes = {1, 2}> {
    h = Shape<start = 1, end = 2>(x) f = Cast<to = 1>(h) area = Mul(f, f)
    sum = ReduceSum<keepdims = 0>(x, axes) y = Div(sum, area)
}"""


def test_candidate_that_takes_the_height_for_the_width_fails(judge: Callable[..., Any]) -> None:
    [failure] = judge(BY_ROWS, SQUARE, RNG.standard_normal((40, 8, 8)).astype(np.float32)).failures
    assert failure.name == NAME
    assert failure.detail.startswith("output 'y' at h=4; ")


RELU = "m (float[n,t,4] x) => (float[n,t,4] y) { c = Identity(x) y = Relu(c) }"


@pytest.mark.parametrize(
    ("candidate", "source", "told"),
    [
        (POOLED.replace("n,t,4", "n,16,4"), POOLED, "at t=8: ONNX Runtime fails on inputs of shape"),
        (RELU.replace("c = Identity(x)", CUT), RELU, "at t=32: 'y' is (16, 16, 4), not (16, 32, 4)"),
    ],
)
def test_candidate_that_refuses_another_length_fails(
    judge: Callable[..., Any], candidate: str, source: str, told: str
) -> None:
    [failure] = judge(candidate, source).failures
    assert (failure.name, failure.value) == (NAME, None)
    assert failure.detail.startswith(told)


def test_cache_that_is_empty_in_the_data_is_filled(bring: Bring) -> None:
    model = "m (float[n,past] cache, float[n,1] x) => (float[n,total] y) { y = Concat<axis = 1>(cache, x) }"
    _, golden, _ = bring(model, {"cache": SAMPLES[:, :0, 0], "x": SAMPLES[:, :1, 0]})
    assert list(golden.cases) == ["real", "random", "past=1", "past=0"]
