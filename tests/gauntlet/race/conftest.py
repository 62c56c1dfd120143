"""A small network, samples for it, and what it should answer."""

from pathlib import Path

import faulty_models
import numpy as np
import onnx
import pytest

from gauntlet.race.expected_outputs import ExpectedOutputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "in.npz"
    np.savez(path, x=np.random.default_rng(0).standard_normal((3, 3, 16, 16), dtype=np.float32))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "cnn.onnx"
    onnx.save(faulty_models.cnn(), path)
    return path


@pytest.fixture(scope="module")
def exact(model: Path, inputs: Path) -> ExpectedOutputs:
    return ExpectedOutputs.of(model, inputs, 60)
