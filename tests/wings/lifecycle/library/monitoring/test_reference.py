"""What requests are compared with: what the bundle keeps, distances of embeddings, and outputs that are broken."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from bundles import pack

from gauntlet.bundle.bundle import Bundle, seal
from gauntlet.core.errors import ConfigError
from gauntlet.core.ragged import joined_samples
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.request_log.log_format import REFERENCE
from wings.lifecycle.library.monitoring.embedding_output import EmbeddingOutput, NoEmbedding
from wings.lifecycle.library.monitoring.embeddings import MIN_SAMPLES, EmbeddingReference
from wings.lifecycle.library.monitoring.features import are_broken, output_features
from wings.lifecycle.library.monitoring.monitor_history import _known
from wings.lifecycle.library.monitoring.reference import MonitoringReference
from wings.lifecycle.library.monitoring.seasonal_evidence import seasonal_wealth

if TYPE_CHECKING:
    from conftest import Trained

MakeSpace = Callable[..., Workspace]


def test_reference_has_the_features_and_errors_of_the_test_split(trained: "Trained", workspace: MakeSpace) -> None:
    report = pack(workspace(trained.store), trained.model, trained.golden, {"reference_samples": 60}, test=trained.test)
    bundle = Bundle.open(trained.store.path(report.artifacts["bundle"]))
    reference = MonitoringReference.load(bundle)
    assert reference.names == ("brightness", "contrast", "sharpness", "colorfulness", "predicted class", "confidence")
    assert reference.features.shape == (60, 6)
    assert reference.error is not None and reference.error < 0.2
    assert ((reference.features[:, 0] > 0.1) & (reference.features[:, 0] < 0.6)).all()  # of pixels, not normalized
    assert reference.embedding is not None and reference.no_embedding == ""
    assert report.facts.embedding == reference.embedding.output.layer
    assert reference.embedding.usual.shape == (30,)
    assert reference.watched == (*reference.names, "embedding distance")


def test_reference_of_another_model_is_damage(trained: "Trained", workspace: MakeSpace, tmp_path: Path) -> None:
    report = pack(workspace(trained.store), trained.model, trained.golden, {"reference_samples": 60}, test=trained.test)
    shutil.unpack_archive(trained.store.path(report.artifacts["bundle"]), tmp_path)
    with np.load(tmp_path / REFERENCE) as file:
        arrays = dict(file)
    np.savez(tmp_path / REFERENCE, **arrays | {"features": arrays["features"] + 1})
    seal(tmp_path)
    damage = "provenance/slsa.json: it is about another monitoring.npz than the one in the bundle"
    assert [*Bundle.open(tmp_path).damage()] == [damage]


def test_bundle_without_a_reference_says_how_to_get_one(trained: "Trained", workspace: MakeSpace) -> None:
    config = {"reference_samples": 0}
    report = pack(workspace(trained.store), trained.model, trained.golden, config, test=trained.test)
    with pytest.raises(ConfigError, match=r"no monitoring.npz to compare with. Fix: .*package.reference_samples"):
        MonitoringReference.load(Bundle.open(trained.store.path(report.artifacts["bundle"])))


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


@pytest.mark.parametrize("season_h", [0, 24])
def test_samples_without_a_number_are_as_usual_as_they_were_in_the_evaluation(season_h: float) -> None:
    """Rows of a table with missing values, for example."""
    random = np.random.default_rng(0)
    evaluated, logged = (np.where(random.random(size) < 0.3, np.nan, random.normal(size=size)) for size in (500, 2000))
    usual = MonitoringReference(("input mean",), evaluated[:, None], None).usual(0)
    evidence = seasonal_wealth(usual, _known(logged), 30.0 * np.arange(2000), season_h, seed=0)
    assert evidence.first_above(0.01) is None


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
