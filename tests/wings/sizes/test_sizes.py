"""Sizes that a user names are judged and raced, each with a verdict and one for the mix; caches are emptied, too."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest

from configs.brought_model import infer_config
from flows.cli.argument_types import by_occurrence
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.datasets.splits import ArraySplit
from tasks.benchmark.config import BenchmarkConfig
from tasks.train.onnx_pretrained import OnnxModel
from wings.sizes.library.size_race import SizesFacts, sizes

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
RELU = "m (float[n,t,4] x) => (float[n,t,4] y) { y = Relu(x) }"
PRODUCTS = (
    "m (float[n,t,4] x) => (float[n,t,4] y) <float[4,2048] a, float[2048,4] b> { p = MatMul(x, a) y = MatMul(p, b) }"
)
CACHED = """m (float[n,1,4] x, float[n,past,4] cache, float[n,total] mask) => (float[n,1] y, float[n,total,4] present) {
  present = Concat<axis = 1>(cache, x)  w = Unsqueeze(mask, one)  p = Mul(present, w)
  y = ReduceSum<keepdims = 0>(p, both) }"""
CACHED = CACHED.replace(" => ", " => ").replace(
    "{\n", "{\n one = Constant<value = int64[1] {2}>() both = Constant<value = int64[1] {1}>()\n", 1
)


def tokens(length: int = 8, count: int = 40) -> np.ndarray:
    return RNG.standard_normal((count, length, 4)).astype(np.float32)


def write(path: Path, text: str) -> Path:
    onnx.save(onnx_text.model(text, opset=17), path)
    return path


@pytest.fixture
def golden_cases(workspace: Callable[..., Workspace]) -> Callable[..., dict[str, GoldenCase]]:
    """Return a function that brings a model with samples, and returns its golden cases but the data's own."""

    def bring(model: Path, samples: Mapping[str, np.ndarray], **more: Any) -> dict[str, GoldenCase]:
        specs = [TensorSpec(name=n, dtype=a.dtype.name, shape=("batch", *a.shape[1:])) for n, a in samples.items()]
        signature, out = Signature(task="arrays", inputs=tuple(specs), outputs=(), layout="none"), workspace()
        report = OnnxModel(model=model, **more).fit({"test": ArraySplit(dict(samples))}, signature, out)
        cases = Golden.load(out.path(report.artifacts["golden"])).cases
        return {title: case for title, case in cases.items() if title not in ("real", "random")}

    return bring


def test_named_lengths_are_cut_from_the_samples_or_join_two(golden_cases: Any, tmp_path: Path) -> None:
    samples = tokens()
    cases = golden_cases(write(tmp_path / "m.onnx", RELU), {"x": samples}, lengths=({"t": 3}, {"t": 20}))
    assert [*cases] == ["t=3", "t=20"]
    assert np.array_equal(cases["t=3"].inputs["x"], samples[:32, :3])
    assert np.array_equal(cases["t=20"].inputs["x"][1], samples[[1, 0, 1]].reshape(24, 4)[:20])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"length": 3}, "unknown open axis 'length'; available: t"),
        ({"t": 3}, "the model fails at t=3. Fix: name every axis"),
    ],
)
def test_length_that_the_model_does_not_take_is_an_error(
    golden_cases: Any, tmp_path: Path, named: dict[str, int], message: str
) -> None:
    text = "m (float[n,t] x) => (float[n,3] y) <float[8,3] w> { y = MatMul(x, w) }"
    with pytest.raises(StageError, match=message):
        golden_cases(write(tmp_path / "m.onnx", text), {"x": tokens()[:, :, 0]}, lengths=(named,))


def cache_model(path: Path) -> Path:
    proto = onnx.load(write(path, CACHED))
    for value in (proto.graph.input[2], proto.graph.output[1]):
        value.type.tensor_type.shape.dim[1].dim_param = "past + 1"
    onnx.save(proto, path)
    return path


def test_cache_is_judged_empty_and_a_mask_over_it_follows(golden_cases: Any, tmp_path: Path) -> None:
    samples = {"x": tokens(1), "cache": tokens(8), "mask": RNG.standard_normal((40, 9)).astype(np.float32)}
    cases = golden_cases(cache_model(tmp_path / "m.onnx"), samples)
    assert [*cases] == ["past=4", "past=2", "past=1", "past=16", "past=0"]
    shapes = {title: (case.inputs["cache"].shape[1], case.inputs["mask"].shape[1]) for title, case in cases.items()}
    assert shapes == {"past=4": (4, 5), "past=2": (2, 3), "past=1": (1, 2), "past=16": (16, 17), "past=0": (0, 1)}
    assert cases["past=0"].outputs["present"].shape == (32, 1, 4)


def test_empty_cache_of_the_samples_is_filled_with_zeros(golden_cases: Any, tmp_path: Path) -> None:
    samples = {"x": tokens(1), "cache": tokens(0), "mask": RNG.standard_normal((40, 1)).astype(np.float32)}
    [case] = golden_cases(cache_model(tmp_path / "m.onnx"), samples, lengths=({"past": 5},)).values()
    assert case.inputs["cache"].shape == (32, 5, 4)
    assert not case.inputs["cache"].any()


def test_shapes_of_one_input_are_sizes_in_their_order() -> None:
    shapes = [("a", (1,)), ("b", (2,)), ("a", (3,)), ("a", (4,)), ("b", (5,))]
    assert by_occurrence(shapes) == [{"a": (1,), "b": (2,)}, {"a": (3,), "b": (5,)}, {"a": (4,)}]
    assert by_occurrence([]) == [{}]


def test_further_shapes_are_lengths_of_axes(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", RELU)
    found = infer_config(model, None, None, {"x": (8, 4)}, further=[{"x": (16, 4)}, {"x": (8, 4)}])
    assert found.values["train"]["lengths"] == [{"t": 16}]
    assert found.notes["sizes"] == "also t=16, judged and raced"


def test_shapes_beside_samples_are_further_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=tokens())
    found = infer_config(write(tmp_path / "m.onnx", RELU), tmp_path / "s.npz", None, {"x": (16, 4)})
    assert found.values["train"]["lengths"] == [{"t": 16}]


def test_further_shapes_of_images_are_lengths_of_their_axes(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", "m (float[n,3,h,w] x) => (float[n,3,h,w] y) { y = Relu(x) }")
    found = infer_config(model, None, None, {"x": (3, 8, 8)}, further=[{"x": (3, 16, 12)}])
    assert found.values["train"]["lengths"] == [{"h": 16, "w": 12}]


def test_further_shapes_of_a_framework_s_file_are_lengths_where_it_names_its_open_axes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    axes = {"input": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}}
    example = (torch.ones(2, 8, 4),)
    torch.export.save(torch.export.export(torch.nn.ReLU(), example, dynamic_shapes=axes), tmp_path / "m.pt2")
    torch.jit.trace(torch.nn.ReLU(), example).save(tmp_path / "m.pt")
    sizes = {"further": [{"input": (16, 4)}], "trust": True}
    [lengths] = infer_config(tmp_path / "m.pt2", None, None, {"input": (8, 4)}, **sizes).values["train"]["lengths"]
    assert [*lengths.values()] == [16]
    with pytest.raises(ConfigError, match="export it, and run the ONNX file"):
        infer_config(tmp_path / "m.pt", None, None, {"input": (8, 4)}, **sizes)


def test_further_shape_that_the_model_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a sample of x: axis 1 is 5; the model fixes it to 4"):
        infer_config(write(tmp_path / "m.onnx", RELU), None, None, {"x": (8, 4)}, further=[{"x": (8, 5)}])


@pytest.fixture
def race(workspace: Callable[..., Workspace]) -> Callable[..., Report[SizesFacts]]:
    """Return a function that races models, the reference first, at lengths of 2 and 256."""

    def run(*texts: str, raced: bool = True) -> Report[SizesFacts]:
        out = workspace()
        models: dict[str, Artifact] = {}
        for name, text in zip(("fp32", "int8"), texts, strict=False):
            models[name] = out.store_file(write(out.folder / f"{name}.onnx", text))
        cases = {
            title: GoldenCase({"x": tokens(length)}, {"y": np.zeros(40)})
            for title, length in (("real", 2), ("t=256", 256))
        }
        Golden(cases, {}).save(out.folder / "golden.npz")
        golden = out.store_file(out.folder / "golden.npz")
        config = BenchmarkConfig(rounds=6, block_ms=1, restart_processes=False, session_variants=())
        compared = {"real": 2, "t=256": 1}
        return sizes(
            config, out, models=models, golden=golden, target="ort-cpu", batch=1, compared=compared, raced=raced
        )

    return run


def test_every_size_and_the_mix_have_a_verdict(race: Callable[..., Report[SizesFacts]]) -> None:
    report = race(PRODUCTS, RELU)
    assert [(each.size, each.speed and each.speed.verdict) for each in report.facts.sizes][1] == ("t=256", "faster")
    mix, parts = report.facts.mix, [each.speed for each in report.facts.sizes if each.speed]
    assert mix is not None
    assert mix.verdict == "faster"
    assert mix.reference_ms == sum(part.reference_ms for part in parts)
    assert not report.failures
    expected = [("of the data", "2"), ("t=256", "1"), ("a call of each", "")]
    assert [row[:2] for row in report.facts.section().rows] == expected


def test_winner_that_is_slower_in_the_mix_fails(race: Callable[..., Report[SizesFacts]]) -> None:
    report = race(RELU, PRODUCTS)
    assert [failure.name for failure in report.failures] == ["sizes.slower_mix"]
    warning = next(check for check in report.checks if check.name == "sizes.slower")
    assert "t=256" in warning.detail


def test_winner_that_fails_at_a_size_fails(race: Callable[..., Report[SizesFacts]]) -> None:
    report = race(RELU, RELU.replace("n,t,4", "n,2,4"))
    [failure] = report.failures
    assert failure.name == "sizes.failed"
    assert failure.detail.startswith("t=256: ")
    assert report.facts.mix is None


def test_reference_alone_has_times_and_no_verdict(race: Callable[..., Report[SizesFacts]]) -> None:
    speeds = [each.speed for each in race(RELU).facts.sizes]
    assert [speed and speed.verdict for speed in speeds] == ["reference", "reference"]


def test_sizes_that_are_not_raced_are_listed(race: Callable[..., Report[SizesFacts]]) -> None:
    report = race(RELU, PRODUCTS, raced=False)
    assert [(each.size, each.speed) for each in report.facts.sizes] == [("of the data", None), ("t=256", None)]
    assert not report.checks
