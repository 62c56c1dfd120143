"""Calibration in chunks against ORT's own of all images at once, and the checks of the calibration set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest
from calibrated_recipes import calibrated
from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static
from onnxruntime.quantization.calibrate import TensorsData, create_calibrator

from gauntlet.calibration import activation_statistics
from gauntlet.calibration.activation_statistics import collect_statistics, open_calibrator
from gauntlet.calibration.entropy import Entropy
from gauntlet.calibration.minmax import MinMax
from gauntlet.calibration.percentile import Percentile
from gauntlet.calibration.ranges import Ranges
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import ArraySplit
from gauntlet.onnx_model import model_file
from tasks.calibrate import CalibrateFacts
from tasks.quantize.static import StaticInt8

COUNT = 96
METHODS = (MinMax(), Entropy(), Percentile(percentile=99.9))
QUICK = (MinMax(), Percentile(percentile=99.9))
Answer = tuple[Workspace, Report[CalibrateFacts]]


def network(path: Path, batch: Any = "n", scale: float = 1.0) -> Path:
    """Write convolutions with a residual sum, a constant branch, and a Gemm; `scale` reaches the first weights."""
    text = f"""
        network (float[{batch},3,12,12] x) => (float[{batch},4] y)
        <float[8,3,3,3] w1, float[8,8,3,3] w2, float[8,4] w3, float zero = {{0}}, float three = {{3}}>
        {{
            c1 = Conv<pads = [1, 1, 1, 1]>(x, w1)
            r1 = Relu(c1)
            c2 = Conv<pads = [1, 1, 1, 1]>(r1, w2)
            sum = Add(c2, r1)
            nothing = Mul(sum, zero)
            constant = Add(nothing, three)
            both = Add(sum, constant)
            mean = GlobalAveragePool(both)
            flat = Flatten(mean)
            y = Gemm(flat, w3)
        }}
    """
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 4)}
    weights = {name: rng.standard_normal(shape) / 3 for name, shape in shapes.items()}
    weights["w1"] *= scale
    proto = onnx_text.model(text, weights, opset=17)
    signature_from_graph(proto).replace(labels=tuple("abcd")).write(proto)
    onnx.save(proto, path)
    return path


def images(count: int = COUNT, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3, 12, 12)).astype(np.float32)


class Taken:
    """A split that remembers how many samples it was asked for each time."""

    labels = None

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.sizes = array, list[int]()

    def __len__(self) -> int:
        return len(self.array)

    def take(self, indices: slice) -> dict[str, np.ndarray]:
        taken = self.array[indices]
        self.sizes.append(len(taken))
        return {"x": taken}


@pytest.fixture
def answer(workspace: Callable[..., Workspace], tmp_path: Path) -> Callable[..., Answer]:
    """Return a function that calibrates a model on arrays."""

    def keep(out: Workspace, name: str, labels: Any, **arrays: np.ndarray) -> Artifact:
        path = tmp_path / f"{name}.npz"
        np.savez(path, **arrays, **({} if labels is None else {"labels": labels}))
        return out.store_file(path)

    def run(model: Path, arrays: Any, *methods: Any, labels: Any = None, test: Any = None, **config: Any) -> Answer:
        out = workspace()
        arrays = arrays if isinstance(arrays, dict) else {"x": arrays}
        others = {name: values[:2] + 9 for name, values in arrays.items()} if test is None else {"x": test}
        splits = keep(out, "calibration", labels, **arrays), keep(out, "test", None, **others)
        return out, calibrated(out, out.store_file(model), *splits, *methods, **config)

    return run


class Reader:
    """Feeds ORT's calibrators, eight images at a time."""

    def __init__(self, array: np.ndarray) -> None:
        self.feeds = iter([{"x": array[start : start + 8]} for start in range(0, len(array), 8)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def of_ort(
    prepared: Path, folder: Path, method: CalibrationMethod, array: np.ndarray, types: Any = None, **options: Any
) -> TensorsData:
    model = folder / "prepared.onnx"
    model.write_bytes(prepared.read_bytes())
    calibrator = create_calibrator(
        model, types, str(folder / "augmented.onnx"), calibrate_method=method, extra_options=options
    )
    calibrator.collect_data(Reader(array))
    return calibrator.compute_data()


def found(out: Workspace, report: Report[CalibrateFacts]) -> dict[str, dict[str, tuple[float, float]]]:
    return Ranges.read(out.path(report.artifacts["ranges"])).methods


def ends(data: TensorsData, names: Any) -> dict[str, tuple[float, ...]]:
    return {name: tuple(float(np.squeeze(end)) for end in data[name].range_value) for name in names}


def check(report: Report[Any], name: str) -> Any:
    return next(c for c in report.checks if c.name == f"calibrate.{name}")


@pytest.mark.parametrize("count", [COUNT, 100, 5])  # the last batch is full, smaller, and the only one
def test_minmax_is_orts_for_every_tensor_that_the_quantizer_wants(
    answer: Callable[..., Answer], tmp_path: Path, count: int
) -> None:
    out, report = answer(network(tmp_path / "m.onnx"), images(count))
    prepared, ours = out.path(report.artifacts["prepared"]), found(out, report)["minmax"]
    theirs = of_ort(prepared, tmp_path, CalibrationMethod.MinMax, images(count))
    assert ours == ends(theirs, ours)
    assert {"x", "c1", "r1", "c2", "sum", "constant", "mean", "flat", "y"} <= ours.keys()
    assert report.facts.images == count


def test_histogram_methods_are_orts_when_ort_survives(answer: Callable[..., Answer], tmp_path: Path) -> None:
    out, report = answer(network(tmp_path / "m.onnx"), images(), *METHODS)
    prepared, ours = out.path(report.artifacts["prepared"]), found(out, report)
    percentile = of_ort(prepared, tmp_path, CalibrationMethod.Percentile, images(), percentile=99.9, symmetric=False)
    theirs = ends(percentile, ours["minmax"])
    low, high = theirs.pop("constant")
    assert low > high  # the one bin of a constant's values begins and ends at the same edge
    assert ours["percentile99.9"] == {**theirs, "constant": (3.0, 3.0)}
    entropy = of_ort(prepared, tmp_path, CalibrationMethod.Entropy, images(), ["Relu", "Gemm"], num_bins=2048)
    assert {*entropy} == {"c1", "r1", "flat", "y"}
    assert {name: ours["entropy"][name] for name in entropy} == ends(entropy, entropy)
    assert ours["entropy"] != ours["minmax"]
    # What `quantize_static` asks for: 128 bins for 128 levels leave one range to choose.
    assert ends(of_ort(prepared, tmp_path, CalibrationMethod.Entropy, images()), ours["minmax"]) == ours["minmax"]


def test_quantized_model_is_orts_byte_for_byte_when_the_ranges_are_minmax(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    out, report = answer(network(tmp_path / "m.onnx"), images(100))
    prepared = tmp_path / "prepared.onnx"
    prepared.write_bytes(out.path(report.artifacts["prepared"]).read_bytes())
    ranges = Ranges.read(out.path(report.artifacts["ranges"]))
    StaticInt8().quantize(tmp_path / "m.onnx", prepared, ranges, tmp_path / "ours.onnx")
    quantize_static(
        prepared, tmp_path / "theirs.onnx", Reader(images(100)), per_channel=True, activation_type=QuantType.QUInt8
    )
    assert (tmp_path / "ours.onnx").read_bytes() == (tmp_path / "theirs.onnx").read_bytes()


def test_histograms_survive_what_ort_does_not(answer: Callable[..., Answer], tmp_path: Path) -> None:
    odd = images(100)
    out, report = answer(network(tmp_path / "m.onnx"), odd, *QUICK)
    report.raise_if_blocked()
    ranges = found(out, report)
    assert all(ranges[method.name]["constant"] == (3.0, 3.0) for method in QUICK)
    prepared = out.path(report.artifacts["prepared"])
    with pytest.raises(ValueError, match="inhomogeneous"):  # its last batch has four images
        of_ort(prepared, tmp_path, CalibrationMethod.Entropy, odd)
    # Each histogram is of all images, the last batch included.
    seen = collect_statistics(out, open_calibrator(prepared, tmp_path), ArraySplit({"x": odd}), 100, with_counts=True)
    histogram = seen.after[100]["x"].histogram
    assert histogram is not None
    assert histogram[0].sum() == odd.size


def test_ranges_are_the_same_when_the_memory_allows_one_image_a_call(
    answer: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = answer(network(tmp_path / "m.onnx"), images())
    prepared, chunks = open_calibrator(out.path(report.artifacts["prepared"]), tmp_path), Taken(images())
    whole = collect_statistics(out, prepared, chunks, COUNT, with_counts=True)
    monkeypatch.setattr(activation_statistics, "CHUNK_BYTES", 1)
    single = Taken(images())
    apart = collect_statistics(out, prepared, single, COUNT, with_counts=True)
    assert (max(chunks.sizes), max(single.sizes)) == (8, 1)
    assert whole.after.keys() == apart.after.keys() == {COUNT // 2, COUNT}
    for method in METHODS:
        for name, one in whole.after[COUNT].items():  # a convolution of one image may round as that of eight does not
            np.testing.assert_allclose(
                method.range_of(one), method.range_of(apart.after[COUNT][name]), rtol=1e-4, atol=1e-4
            )


def test_model_too_large_for_one_file_is_calibrated(
    answer: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = answer(network(tmp_path / "m.onnx"), images(20), *METHODS)
    monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 1000)  # two gigabytes would say the same, slowly
    large_out, large = answer(network(tmp_path / "m.onnx"), images(20), *METHODS)
    prepared = large_out.path(large.artifacts["prepared"])
    assert len(model_file.model_files(prepared)) == 2
    assert found(large_out, large) == found(out, report)
    assert not [*large_out.folder.iterdir()]  # the copy with its activations as outputs is gone


def test_half_of_the_images_is_what_a_model_with_a_fixed_batch_reaches_first(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    _, report = answer(network(tmp_path / "m.onnx", batch=4), images(20))
    assert {(c.method, c.images) for c in report.facts.changes} == {("minmax", 12)}


def test_model_with_a_fixed_batch_counts_no_image_twice(answer: Callable[..., Answer], tmp_path: Path) -> None:
    _, free = answer(network(tmp_path / "free.onnx"), images(8), *QUICK)
    _, fixed = answer(network(tmp_path / "fixed.onnx", batch=4), images(10), *QUICK)
    assert (free.facts.images, fixed.facts.images) == (8, 8)
    assert fixed.facts.tensors == free.facts.tensors


def test_model_with_two_inputs_is_calibrated(answer: Callable[..., Answer], tmp_path: Path) -> None:
    proto = onnx_text.model("two (float[n,3] x, float[n,3] z) => (float[n,3] y) { y = Add(x, z) }", opset=17)
    signature_from_graph(proto).write(proto)
    onnx.save(proto, tmp_path / "two.onnx")
    arrays = {name: np.full((6, 3), value, np.float32) for name, value in (("x", 1), ("z", 2))}
    out, report = answer(tmp_path / "two.onnx", arrays, *METHODS)
    assert found(out, report)["entropy"] == {"x": (1.0, 1.0), "z": (2.0, 2.0), "y": (3.0, 3.0)}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gate_fails_when_an_activation_is_no_number(answer: Callable[..., Answer], tmp_path: Path, bad: float) -> None:
    array = images(40)
    array[17, 0, 5, 5] = bad
    _, report = answer(network(tmp_path / "m.onnx"), array, *QUICK)
    failure = check(report, "non_finite_tensors")
    assert [c.name for c in report.failures] == [failure.name]
    assert failure.value >= 5
    assert failure.detail.startswith("NaN or infinity in x, c1, r1, ")


def test_images_are_enough_when_the_second_half_adds_nothing(answer: Callable[..., Answer], tmp_path: Path) -> None:
    _, report = answer(network(tmp_path / "m.onnx"), np.tile(images(8), (12, 1, 1, 1)), *QUICK)
    passed = check(report, "max_range_change")
    assert passed.passed
    assert passed.detail.startswith("96 images are enough: from 48 of them, ")
    assert {(c.method, c.images) for c in report.facts.changes} == {(m.name, n) for m in QUICK for n in (48,)}


def test_ranges_have_not_converged_when_the_last_image_is_another(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    array = images()
    array[-1] *= 20
    _, report = answer(network(tmp_path / "m.onnx"), array)
    warning = check(report, "max_range_change")
    assert not warning.passed
    assert warning.detail.startswith("not converged at 96 images: from 48 of them, the minmax range of ")
    report.raise_if_blocked()  # it warns
    _, strict = answer(network(tmp_path / "m.onnx"), array, strict=True)
    assert [c.name for c in strict.failures] == ["calibrate.max_range_change"]


def test_ranges_have_not_converged_when_there_is_one_image(answer: Callable[..., Answer], tmp_path: Path) -> None:
    _, report = answer(network(tmp_path / "m.onnx"), images(1), *QUICK)
    unknown = check(report, "max_range_change")
    assert (unknown.passed, unknown.value) == (False, None)
    assert unknown.detail == "not converged at 1 images: too few to compare half of them with all"


def test_convergence_is_no_question_when_there_is_nothing_to_quantize(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    proto = onnx_text.model("exp (float[n,3,12,12] x) => (float[n,3,12,12] y) { y = Exp(x) }", opset=17)
    signature_from_graph(proto).write(proto)
    onnx.save(proto, tmp_path / "exp.onnx")
    _, report = answer(tmp_path / "exp.onnx", images(8), *QUICK, strict=True)
    assert report.facts.tensors == 0
    assert "calibrate.max_range_change" not in {c.name for c in report.checks}
    report.raise_if_blocked()


def test_coverage_fails_when_a_class_has_no_image_among_those_used(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    labels = np.repeat([0, 1, 2, 3], COUNT // 4)
    _, whole = answer(network(tmp_path / "m.onnx"), images(), labels=labels)
    assert check(whole, "missing_classes").passed
    _, half = answer(network(tmp_path / "m.onnx"), images(), labels=labels, images=48, strict=True)
    assert "calibrate.missing_classes" in {c.name for c in half.failures}
    assert check(half, "missing_classes").detail == "no calibration image of c, d"


def test_overlap_fails_when_a_calibration_image_is_in_the_test_set(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    test = np.concatenate([images(5, seed=9), images()[70:71]])
    _, report = answer(network(tmp_path / "m.onnx"), images(), test=test, strict=True)
    assert "calibrate.test_overlap" in {c.name for c in report.failures}
    assert check(report, "test_overlap").detail == "calibration[70] is test[5]"
    _, few = answer(network(tmp_path / "m.onnx"), images(), test=test, images=64)  # image 70 is not used
    assert check(few, "test_overlap").passed


def test_nodes_have_names_of_their_own_in_the_prepared_model(answer: Callable[..., Answer], tmp_path: Path) -> None:
    out, report = answer(network(tmp_path / "m.onnx"), images(8))
    names = [node.name for node in onnx.load(out.path(report.artifacts["prepared"])).graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_calibrate_raises_a_stage_error_when_the_images_have_another_shape(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    with pytest.raises(StageError, match="x"):
        answer(network(tmp_path / "m.onnx"), np.zeros((8, 5, 12, 12), np.float32))


def test_overlap_is_found_in_the_splits_that_the_data_stage_keeps(trained) -> None:
    from gauntlet.datasets.audit import shared_samples

    calibration, test = (read_split(trained.store.path(trained.artifacts[n])) for n in ("calibration", "test"))
    assert shared_samples(calibration, test) == []
    assert shared_samples(test, test) == [(n, n) for n in range(len(test))]
