"""Calibration in chunks against ORT's own of all images at once."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest
from calibrated_recipes import COUNT, QUICK, Answer, images, network
from calibration_feeds import Feeds
from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static
from onnxruntime.quantization.calibrate import TensorsData, create_calibrator

from gauntlet.calibration import activation_statistics
from gauntlet.calibration.activation_statistics import collect_statistics, open_calibrator
from gauntlet.calibration.methods import Entropy, MinMax, Percentile
from gauntlet.calibration.ranges import Ranges
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from gauntlet.onnx_model import model_file
from tasks.calibrate import CalibrateFacts
from tasks.quantize.static import StaticInt8

METHODS = (MinMax(), Entropy(), Percentile(percentile=99.9))


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


def by_eight(array: np.ndarray) -> Feeds:
    """Feed ORT's calibrators eight images at a time."""
    return Feeds({"x": array[start : start + 8]} for start in range(0, len(array), 8))


def of_ort(
    prepared: Path, folder: Path, method: CalibrationMethod, array: np.ndarray, types: Any = None, **options: Any
) -> TensorsData:
    model = folder / "prepared.onnx"
    model.write_bytes(prepared.read_bytes())
    calibrator = create_calibrator(
        model, types, str(folder / "augmented.onnx"), calibrate_method=method, extra_options=options
    )
    calibrator.collect_data(by_eight(array))
    return calibrator.compute_data()


def found(out: Workspace, report: Report[CalibrateFacts]) -> dict[str, dict[str, tuple[float, float]]]:
    return Ranges.read(out.path(report.artifacts["ranges"])).methods


def ends(data: TensorsData, names: Any) -> dict[str, tuple[float, ...]]:
    return {name: tuple(float(np.squeeze(end)) for end in data[name].range_value) for name in names}


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


@pytest.mark.nightly
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
        prepared, tmp_path / "theirs.onnx", by_eight(images(100)), per_channel=True, activation_type=QuantType.QUInt8
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
    assert seen.after[100]["x"].histogram[0].sum() == odd.size


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
    for method in QUICK:
        for name, one in whole.after[COUNT].items():  # a convolution of one image may round as that of eight does not
            np.testing.assert_allclose(
                method.range_of(one), method.range_of(apart.after[COUNT][name]), rtol=1e-4, atol=1e-4
            )


def test_model_too_large_for_one_file_is_calibrated(
    answer: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = answer(network(tmp_path / "m.onnx"), images(20), *QUICK)
    monkeypatch.setattr(model_file, "MAX_ONE_FILE_BYTES", 1000)  # two gigabytes would say the same, slowly
    large_out, large = answer(network(tmp_path / "m.onnx"), images(20), *QUICK)
    assert len(model_file.model_files(large_out.path(large.artifacts["prepared"]))) == 2
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


@pytest.mark.slow
def test_model_with_two_inputs_is_calibrated(answer: Callable[..., Answer], tmp_path: Path) -> None:
    proto = onnx_text.model("two (float[n,3] x, float[n,3] z) => (float[n,3] y) { y = Add(x, z) }", opset=17)
    signature_from_graph(proto).write(proto)
    onnx.save(proto, tmp_path / "two.onnx")
    arrays = {name: np.full((6, 3), value, np.float32) for name, value in (("x", 1), ("z", 2))}
    out, report = answer(tmp_path / "two.onnx", arrays, *METHODS)
    assert found(out, report)["entropy"] == {"x": (1.0, 1.0), "z": (2.0, 2.0), "y": (3.0, 3.0)}


def test_calibrate_raises_a_stage_error_when_the_images_have_another_shape(
    answer: Callable[..., Answer], tmp_path: Path
) -> None:
    with pytest.raises(StageError, match="x"):
        answer(network(tmp_path / "m.onnx"), np.zeros((8, 5, 12, 12), np.float32))


# 16 channels of 160 x 160: each of the two activations takes 1.6 MB an image.
SIDE, CHANNELS = 160, 16
SCRIPT = """
import sys
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from gauntlet.core.artifact import Store
from gauntlet.calibration.activation_statistics import collect_statistics, open_calibrator
from gauntlet.core.workspace import Workspace

@dataclass(frozen=True)
class Images:
    count: int
    labels: None = None
    def __len__(self):
        return self.count
    def take(self, indices):
        numbers = range(self.count)[indices]
        return {"x": np.stack([np.random.default_rng(n).standard_normal((3, SIDE, SIDE), np.float32) for n in numbers])}

model = Path(sys.argv[1])
out = Workspace(Store(model.parent), model.parent)
seen = collect_statistics(out, open_calibrator(model, model.parent), Images(int(sys.argv[2])), 10**6, with_counts=True)
assert all(one.histogram is not None for one in seen.after[int(sys.argv[2])].values())
status = Path("/proc/self/status").read_text()
print(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024)
"""


def peak_mb(model: Path, images: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("SIDE", str(SIDE)), model, str(images)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


@pytest.mark.nightly
def test_peak_memory_is_the_same_when_there_are_ten_times_as_many_images(tmp_path: Path) -> None:
    text = f"""
        wide (float[n,3,{SIDE},{SIDE}] x) => (float[n,{CHANNELS},{SIDE},{SIDE}] y)
        <float[{CHANNELS},3,3,3] w>
        {{
            [conv] c = Conv<pads = [1, 1, 1, 1]>(x, w)
            [relu] y = Relu(c)
        }}
    """
    onnx.save(onnx_text.model(text, opset=17), tmp_path / "wide.onnx")
    few, many = peak_mb(tmp_path / "wide.onnx", 32), peak_mb(tmp_path / "wide.onnx", 320)
    activations_mb = 288 * 2 * CHANNELS * SIDE * SIDE * 4 / 1e6  # of the other images, which ORT would keep
    assert activations_mb > 900
    assert many - few < 60
