"""Flax networks: files of plain arrays, and answers that depend on nothing but the picture."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.jax import network as source
from gauntlet.core.errors import StageError

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # compiling takes longer here than computing
RECIPE = source.SmallCnn(channels=3, classes=5, height=8, width=10, layout="NHWC", widths=(4, 6))
PICTURES = np.random.default_rng(0).standard_normal((150, 8, 10, 3)).astype(np.float32)


def predict(network, recipe: source.SmallCnn = RECIPE):
    run, parts = source.scores_function(network, recipe), source.split_state(network)
    return lambda pictures: run(parts, pictures)


@pytest.fixture(scope="module")
def network():
    built = RECIPE.build(3)
    built.eval()
    return built


@pytest.fixture(scope="module")
def scores(network):
    return predict(network)


def test_network_answers_the_same_when_it_was_saved_and_loaded(network, scores, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    source.save(path, RECIPE, network)
    loaded, recipe = source.load(path)
    assert recipe == RECIPE
    assert np.array_equal(predict(loaded)(PICTURES), scores(PICTURES))
    with np.load(path, allow_pickle=False) as file:  # no object in it, so no pickle
        assert {file[name].dtype.kind for name in file.files} == {"f", "U"}
    again = tmp_path / "again.npz"
    source.save(again, recipe, loaded)
    assert again.read_bytes() == path.read_bytes()


@settings(max_examples=20)
@given(count=st.integers(1, 150))
def test_answer_of_a_picture_is_the_same_when_others_come_with_it(scores, count: int) -> None:
    together = scores(PICTURES[:count])
    assert together.shape == (count, 5)
    np.testing.assert_allclose(together[-1:], scores(PICTURES[count - 1 : count]), rtol=0, atol=1e-6)


def test_answers_are_the_same_when_pictures_come_in_the_other_layout(network, scores) -> None:
    other = predict(network, RECIPE.replace(layout="NCHW"))
    assert np.array_equal(other(PICTURES.transpose(0, 3, 1, 2)), scores(PICTURES))


def test_network_is_refused_when_pictures_are_too_small_to_be_halved() -> None:
    with pytest.raises(StageError, match=r"train\.widths: each of the 4 widths halves the image"):
        RECIPE.replace(widths=(4, 4, 4, 4)).build()
