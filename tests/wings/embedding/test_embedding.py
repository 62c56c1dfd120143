"""Embeddings are judged by their neighbors, and by what their vectors differ by."""

import numpy as np
import pytest
from problem_samples import problem

from gauntlet.datasets.golden import Golden
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy


def test_embedding_is_as_good_as_its_neighbors() -> None:
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [1, 0.05]], np.float32)
    found = problem("embedding")
    assert found.score(found.predictions(vectors), np.array([0, 0, 1, 1, 1]))["recall_at_1"] == pytest.approx(2 / 5)


def test_shared_part_of_all_vectors_hides_no_lost_embedding() -> None:
    vectors = 100 + np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
    lost = np.broadcast_to(vectors.mean(0), vectors.shape).astype(np.float32)
    comparison = compare_accuracy(Golden({}, {"y": vectors}), problem("embedding").signature, {"y": lost})
    checks = {check.name: check for check in accuracy_checks(AccuracyLimits(min_sqnr_db=-100), comparison)}
    lost_part = checks["accuracy.max_accuracy_drop"]
    assert lost_part.blocks and float(lost_part.value or 0) > 0.4


def test_vectors_that_hardly_move_but_lose_their_neighbors_are_refused() -> None:
    rng = np.random.default_rng(3)
    shared = np.repeat(rng.standard_normal((10, 16)), 20, axis=0)
    vectors = shared / np.linalg.norm(shared, axis=1, keepdims=True)
    vectors[:, 0] = np.resize([0.12, -0.12], 200)  # tells two classes in each of ten groups apart
    lost = vectors * (np.arange(16) > 0) + rng.normal(0, 1e-3, vectors.shape)
    golden, embedding = Golden({}, {"y": vectors}), problem("embedding")
    comparison = compare_accuracy(golden, embedding.signature, {"y": lost})
    moved = 1 - embedding.agreement(vectors, lost)(np.ones((1, 200)))[0]
    assert moved < 0.01 < comparison.expected_loss.drop


def test_vectors_of_other_lengths_are_refused_where_they_had_length_1() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(200, 32)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths = rng.uniform(0.6, 1.4, (200, 1)).astype(np.float32)
    signature, drop = problem("embedding").signature, ["accuracy.max_class_drop"]
    for before, factor, refused in ((unit, lengths, drop), (unit, np.float32(0.98), []), (vectors, lengths, [])):
        compared = compare_accuracy(Golden({}, {"y": before}), signature, {"y": before * factor})
        assert [check.name for check in accuracy_checks(AccuracyLimits(), compared) if check.blocks] == refused
