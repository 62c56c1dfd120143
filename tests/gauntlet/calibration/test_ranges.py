"""The methods and the histograms against ORT's own, on the same values."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnxruntime.quantization.calibrate import CalibrationMethod, HistogramCollector, load_tensors_data

from gauntlet.calibration.histogram import BINS, EndsCollector, FixedRangeCollector, TensorStatistics
from gauntlet.calibration.methods import Entropy, MinMax, Percentile
from gauntlet.calibration.ranges import Ranges
from gauntlet.core.errors import StageError

FINITE = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
VALUES = npst.arrays(np.float32, st.integers(1, 300), elements=FINITE)


def seen(values: np.ndarray, chunks: int = 1) -> TensorStatistics:
    ends = EndsCollector()
    parts = np.array_split(values, chunks)
    for part in parts:
        ends.collect({"t": part})
    found = ends.result()
    histograms = FixedRangeCollector(found)
    for part in parts:
        histograms.collect({"t": part})
    return TensorStatistics(*found["t"], histograms.result().get("t"))


def of_ort(values: np.ndarray, method: str, percentile: float = 99.999, bins: int = BINS) -> tuple[float, float]:
    collector = HistogramCollector(method, False, bins, 128, percentile, "same")
    collector.collect({"t": [values]})
    low, high = collector.compute_collection_result()["t"][:2]
    return float(low), float(high)


def shapes(kind: str, count: int = 40_000) -> np.ndarray:
    """Return values as activations have them."""
    rng = np.random.default_rng(7)
    normal = rng.standard_normal(count).astype(np.float32)
    return {
        "normal": normal,
        "relu": np.maximum(normal, 0),
        "heavy tails": normal**5,
        "sigmoid": 1 / (1 + np.exp(-normal)),
        "few levels": rng.integers(-3, 9, count).astype(np.float32) / 8,
        "one outlier": np.append(normal, np.float32(40)),
        "negative": -np.abs(normal) - 3,
        "near constant": np.full(count, 3, np.float32) + normal * np.float32(1e-7),
    }[kind]


KINDS = ["normal", "relu", "heavy tails", "sigmoid", "few levels", "one outlier", "negative"]


@pytest.mark.parametrize("kind", KINDS)
def test_histogram_of_chunks_is_orts_of_all_values_at_once(kind: str) -> None:
    values = np.sort(shapes(kind))  # the range grows from chunk to chunk
    orts = HistogramCollector("percentile", False, BINS, 128, 99.999, "same")
    orts.collect({"t": [values]})
    counts, edges, low, high, _ = orts.histogram_dict["t"]
    ours = seen(values, chunks=7)
    assert (ours.lowest, ours.highest) == (low, high)
    np.testing.assert_array_equal(ours.histogram[0], counts)
    np.testing.assert_array_equal(ours.histogram[1], edges)


def test_histogram_keeps_its_size_when_the_first_chunk_is_nearly_zero() -> None:
    values = np.array([0, 1e-30, 0, 1], np.float32)
    orts = HistogramCollector("percentile", False, BINS, 128, 99.999, "same")
    orts.collect({"t": [values[:2]]})
    with pytest.raises((MemoryError, ValueError)):  # it would append 1e33 bins
        orts.collect({"t": [values[2:]]})
    histogram = seen(values, chunks=2).histogram
    assert (histogram[0].size, histogram[0].sum()) == (BINS, 4)


@pytest.mark.parametrize("place", [0, 7, 100])
def test_ends_are_no_number_when_a_value_is_none(place: int) -> None:
    first, values = np.ones(3, np.float32), shapes("normal", 101)
    values[place] = np.nan
    for chunks in ([first, values], [values, first]):
        ends = EndsCollector()
        for chunk in chunks:
            ends.collect({"t": chunk, "empty": chunk[:0]})
        found = ends.result()
        assert np.isnan(found["t"]).all()
        assert "empty" not in found


@pytest.mark.parametrize("method", [Entropy(), Percentile()], ids=lambda m: m.name)
def test_range_is_what_was_seen_when_ort_turns_it_round(method: Entropy | Percentile) -> None:
    values = shapes("near constant")
    low, high = of_ort(values, "percentile")
    assert low > high
    assert method.range_of(seen(values)) == (values.min(), values.max())


@pytest.mark.parametrize("kind", KINDS)
def test_entropy_of_ort_is_minmax_when_it_has_its_usual_128_bins(kind: str) -> None:
    values = shapes(kind)
    assert of_ort(values, "entropy", bins=128) == MinMax().range_of(seen(values))


def test_entropy_clips_what_minmax_keeps_when_there_is_an_outlier() -> None:
    statistics = seen(shapes("one outlier"))
    assert MinMax().range_of(statistics)[1] == 40
    assert Entropy().range_of(statistics)[1] < 10


@given(VALUES, st.floats(50.001, 99.9999))
def test_methods_stay_inside_what_was_seen(values: np.ndarray, percentile: float) -> None:
    statistics = seen(values)
    for method in (Percentile(percentile=percentile), MinMax()):
        low, high = method.range_of(statistics)
        assert values.min() <= low
        assert high <= values.max()


@pytest.mark.parametrize("value", [0.0, 3.0, -2.5, 1e-38, 3e38])
@pytest.mark.parametrize("method", [MinMax(), Entropy(), Percentile()], ids=lambda m: m.name)
def test_range_is_the_value_when_a_tensor_is_constant(method: MinMax | Entropy | Percentile, value: float) -> None:
    values = np.full(100, value, np.float32)
    low, high = method.range_of(seen(values))
    assert low <= values[0] <= high
    assert low == high


def test_ranges_are_the_same_when_read_back_and_when_ort_reads_them(tmp_path: Path) -> None:
    third = float(np.float32(1) / np.float32(3))
    ranges = Ranges(images=3, methods={"minmax": {"a": (-third, 1e-30), "b": (0.0, 3e38)}})
    assert Ranges.read(ranges.write(tmp_path / "ranges.json")) == ranges
    data = load_tensors_data(ranges.write_for_ort("minmax", tmp_path / "ort.json"))
    assert data.calibration_method == CalibrationMethod.MinMax
    assert {n: tuple(map(float, t.range_value)) for n, t in data.items()} == {
        name: tuple(float(np.float32(end)) for end in ends) for name, ends in ranges.methods["minmax"].items()
    }


def test_ranges_are_refused_when_the_file_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "ranges.json").write_text('{"images": 3')
    with pytest.raises(StageError, match="not a calibration ranges file"):
        Ranges.read(tmp_path / "ranges.json")


def test_methods_have_names_of_their_own_when_their_percentiles_are_near() -> None:
    names = [Percentile(percentile=p).name for p in (99, 99.999, 99.99999, 99.999999)]
    assert names == ["percentile99", "percentile99.999", "percentile99.99999", "percentile99.999999"]
