"""The streaming calibrator beside ORT's own, on the same small network and the same images; and the audit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static
from onnxruntime.quantization.calibrate import TensorsData, create_calibrator
from recipes import calibrated

from tasks.artifact import Artifact
from tasks.calibrate import CalibrateFacts
from tasks.calibrate.prepare import activations
from tasks.calibrate.statistics import collect
from tasks.data.dataset import ArraySplit
from tasks.data.read import read_split
from tasks.errors import StageError
from tasks.quantize.static import StaticInt8
from tasks.ranges import Ranges
from tasks.ranges.entropy import Entropy
from tasks.ranges.minmax import MinMax
from tasks.ranges.percentile import Percentile
from tasks.report import Report
from tasks.signature import describe
from tasks.workspace import Workspace

COUNT = 96
METHODS = (MinMax(), Entropy(), Percentile(percentile=99.9))
QUICK = (MinMax(), Percentile(percentile=99.9))
Answer = tuple[Workspace, Report[CalibrateFacts]]


def network(path: Path, batch: Any = "n", scale: float = 1.0) -> Path:
    """Write convolutions with a residual sum, a constant branch, and a Gemm; `scale` reaches the first weights."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 3, name)

    first = weights("w1", 8, 3, 3, 3)
    first.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(first) * np.float32(scale), "w1"))
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4),
        helper.make_node("Add", ["c2", "r1"], ["sum"]),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "three"], ["constant"]),
        helper.make_node("Add", ["sum", "constant"], ["both"]),
        helper.make_node("GlobalAveragePool", ["both"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("zero", 0), ("three", 3))]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4])],
        [first, weights("w2", 8, 8, 3, 3), weights("w3", 8, 4), *constants],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    describe(proto).replace(labels=tuple("abcd")).write(proto)
    onnx.save(proto, path)
    return path


def images(count: int = COUNT, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3, 12, 12)).astype(np.float32)


class Taken:
    """A split that counts the samples it is asked for."""

    labels = None

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.taken = array, 0

    def __len__(self) -> int:
        return len(self.array)

    def take(self, indices: slice) -> dict[str, np.ndarray]:
        self.taken += len(self.array[indices])
        return {"x": self.array[indices]}


@pytest.fixture
def answer(workspace: Callable[..., Workspace], tmp_path: Path) -> Callable[..., Answer]:
    """Return a function that calibrates a model on arrays."""

    def keep(out: Workspace, name: str, labels: Any, **arrays: np.ndarray) -> Artifact:
        path = tmp_path / f"{name}.npz"
        np.savez(path, **arrays, **({} if labels is None else {"labels": labels}))
        return out.keep(path)

    def run(model: Path, arrays: Any, *methods: Any, labels: Any = None, test: Any = None, **config: Any) -> Answer:
        out = workspace()
        arrays = arrays if isinstance(arrays, dict) else {"x": arrays}
        others = {name: values[:2] + 9 for name, values in arrays.items()} if test is None else {"x": test}
        splits = keep(out, "calibration", labels, **arrays), keep(out, "test", None, **others)
        return out, calibrated(out, out.keep(model), *splits, *methods, **config)

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
def test_minmax_is_orts_for_every_tensor_that_the_quantiser_wants(
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


def test_quantised_model_is_orts_byte_for_byte_when_the_ranges_are_minmax(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    out, report = answer(network(tmp_path / "m.onnx"), images(100))
    prepared = tmp_path / "prepared.onnx"
    prepared.write_bytes(out.path(report.artifacts["prepared"]).read_bytes())
    ranges = Ranges.read(out.path(report.artifacts["ranges"]))
    StaticInt8().write(tmp_path / "m.onnx", prepared, ranges, tmp_path / "ours.onnx")
    quantize_static(
        prepared, tmp_path / "theirs.onnx", Reader(images(100)), per_channel=True, activation_type=QuantType.QUInt8
    )
    assert (tmp_path / "ours.onnx").read_bytes() == (tmp_path / "theirs.onnx").read_bytes()


def test_histograms_survive_what_ort_does_not(answer: Callable[..., Answer], tmp_path: Path) -> None:
    odd = images(100)
    out, report = answer(network(tmp_path / "m.onnx"), odd, *QUICK)
    report.enforce()
    ranges = found(out, report)
    assert all(ranges[method.name]["constant"] == (3.0, 3.0) for method in QUICK)
    prepared = out.path(report.artifacts["prepared"])
    with pytest.raises(ValueError, match="inhomogeneous"):  # its last batch has four images
        of_ort(prepared, tmp_path, CalibrationMethod.Entropy, odd)
    # Each histogram is of all images, the last batch included.
    split = ArraySplit({"x": odd})
    seen = collect(out, prepared, activations(prepared), split, 100, with_counts=True)
    counts = seen.after[100]["x"].counts
    assert counts is not None
    assert counts.sum() == odd.size


@pytest.mark.parametrize("budget_bytes", [10**9, 1])
def test_statistics_are_the_same_when_the_network_runs_twice_or_in_parts(
    answer: Callable[..., Answer], tmp_path: Path, budget_bytes: int
) -> None:
    out, report = answer(network(tmp_path / "m.onnx", batch=4), images())
    prepared = tmp_path / "prepared.onnx"
    prepared.write_bytes(out.path(report.artifacts["prepared"]).read_bytes())
    kept, again = Taken(images()), Taken(images())
    once = collect(out, prepared, activations(prepared), kept, COUNT, with_counts=True)
    twice = collect(
        out, prepared, activations(prepared), again, COUNT, with_counts=True, budget_bytes=budget_bytes, kept_bytes=0
    )
    assert COUNT < kept.taken < 2 * COUNT < again.taken
    assert once.after.keys() == twice.after.keys() == {COUNT // 2, COUNT}
    for images_seen, statistics in once.after.items():
        for name, one in statistics.items():
            other = twice.after[images_seen][name]
            assert (one.lowest, one.highest) == (other.lowest, other.highest)
            np.testing.assert_array_equal(one.counts, other.counts)


def test_model_with_a_fixed_batch_counts_no_image_twice(answer: Callable[..., Answer], tmp_path: Path) -> None:
    _, free = answer(network(tmp_path / "free.onnx"), images(8), *QUICK)
    _, fixed = answer(network(tmp_path / "fixed.onnx", batch=4), images(10), *QUICK)
    assert (free.facts.images, fixed.facts.images) == (8, 8)
    assert fixed.facts.tensors == free.facts.tensors


def test_model_with_two_inputs_is_calibrated(answer: Callable[..., Answer], tmp_path: Path) -> None:
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "z", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "z"], ["y"])], "two", shapes[:2], shapes[2:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    describe(proto).write(proto)
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
    assert passed.detail.startswith("96 images are enough: with 48 of them, ")
    assert {(c.method, c.images) for c in report.facts.changes} == {(m.name, n) for m in QUICK for n in (48,)}


def test_ranges_have_not_converged_when_the_last_image_is_another(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    array = images()
    array[-1] *= 20
    _, report = answer(network(tmp_path / "m.onnx"), array)
    warning = check(report, "max_range_change")
    assert not warning.passed
    assert warning.detail.startswith("not converged at 96 images: with 48 of them, the minmax range of ")
    report.enforce()  # it warns
    _, strict = answer(network(tmp_path / "m.onnx"), array, strict=True)
    assert [c.name for c in strict.failures] == ["calibrate.max_range_change"]


def test_ranges_have_not_converged_when_there_is_one_image(answer: Callable[..., Answer], tmp_path: Path) -> None:
    _, report = answer(network(tmp_path / "m.onnx"), images(1), *QUICK)
    unknown = check(report, "max_range_change")
    assert (unknown.passed, unknown.value) == (False, None)
    assert unknown.detail == "not converged at 1 images: too few to compare a half of them with all"


def test_convergence_is_no_question_when_there_is_nothing_to_quantise(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, 12, 12]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", values[:1], values[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    describe(proto).write(proto)
    onnx.save(proto, tmp_path / "exp.onnx")
    _, report = answer(tmp_path / "exp.onnx", images(8), *QUICK, strict=True)
    assert report.facts.tensors == 0
    assert "calibrate.max_range_change" not in {c.name for c in report.checks}
    report.enforce()


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
    assert "calibrate.test_images" in {c.name for c in report.failures}
    assert check(report, "test_images").detail == "calibration[70] is test[5]"
    _, few = answer(network(tmp_path / "m.onnx"), images(), test=test, images=64)  # it is not among those
    assert check(few, "test_images").passed


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
    from tasks.data.audit import in_both

    calibration, test = (read_split(trained.store.path(trained.artifacts[n])) for n in ("calibration", "test"))
    assert in_both(calibration, test) == []
    assert in_both(test, test) == [(n, n) for n in range(len(test))]
