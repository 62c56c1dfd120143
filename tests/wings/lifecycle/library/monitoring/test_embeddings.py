"""The distance of embeddings from those of the evaluation; outputs that are broken though their inputs are finite."""

import numpy as np
import pytest

from gauntlet.core.ragged import joined_samples
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.embedding_output import EmbeddingOutput, NoEmbedding
from wings.lifecycle.library.monitoring.embeddings import MIN_SAMPLES, EmbeddingReference
from wings.lifecycle.library.monitoring.features import are_broken, output_features

OUTPUT = EmbeddingOutput(layer="Gemm 'y'", tensor="h", size=64, channels_first=False)


def test_distances_are_of_the_evaluation_where_the_mean_was_not_taken() -> None:
    """Distances of the samples that mean and covariance come from would be too small."""
    random = np.random.default_rng(0)
    points = random.standard_normal((200, 32)).astype(np.float32)
    measured = EmbeddingReference.measure(OUTPUT, points)
    assert len(measured.usual) == 100
    later = measured.distances(random.standard_normal((2000, 32)).astype(np.float32))
    assert np.median(measured.usual) == pytest.approx(np.median(later), rel=0.1)
    assert np.median(measured.distances(points)) < 0.95 * np.median(measured.usual)


def test_values_that_are_not_finite_are_infinitely_far() -> None:
    measured = EmbeddingReference.measure(OUTPUT, np.random.default_rng(0).standard_normal((100, 4)))
    found = measured.distances(np.array([[np.nan, 0, 0, 0], [np.inf, -np.inf, 0, 0], [0, 0, 0, 0]], np.float32))
    assert found[:2].tolist() == [np.inf, np.inf]
    assert np.isfinite(found[2])


def test_embedding_that_never_varies_can_be_measured() -> None:
    measured = EmbeddingReference.measure(OUTPUT, np.ones((100, 4), np.float32))
    assert measured.usual.tolist() == [0.0] * 50
    assert measured.distances(np.full((1, 4), 2.0)) > 0


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(NoEmbedding, match=f"19 samples have a finite embedding; it takes {MIN_SAMPLES}"):
        EmbeddingReference.measure(OUTPUT, np.ones((19, 4), np.float32))


NAN = np.array([[0.0], [np.nan], [np.inf]])


def test_output_that_is_not_finite_is_broken_where_the_input_is_finite() -> None:
    inputs, statistics = {"x": np.array([[0.0], [1.0], [np.nan]])}, np.array([[np.nan], [1.0], [1.0]])
    assert are_broken({"y": NAN}, inputs, None, ["y"], 3).tolist() == [0, 1, 0]
    assert are_broken({"y": NAN}, inputs, statistics, ["y"], 3).tolist() == [0, 1, 1]
    assert are_broken({"y": NAN}, None, None, ["y"], 3).tolist() == [0, 1, 1]


def test_outputs_that_need_not_be_finite_are_left_out() -> None:
    assert are_broken({"y": NAN, "label": np.arange(3)}, None, None, ["label", "absent"], 3).tolist() == [0, 0, 0]


def test_features_of_a_list_are_those_of_its_values_and_not_of_the_padding() -> None:
    lists = joined_samples([np.array([[2.0, 4.0]]), np.zeros((1, 0)), np.array([[5.0, 5.0, 5.0]])])
    signature = Signature(task="arrays", inputs=(), outputs=(), layout="none", primary_output="y")
    found = output_features({"y": lists}, signature)
    assert np.array_equal(found, [[3, 1], [np.nan, np.nan], [5, 0]], equal_nan=True)
