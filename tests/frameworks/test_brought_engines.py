"""Programs and functions that were brought, as targets of their frameworks run them."""

from pathlib import Path
from typing import Any

import framework_models
import numpy as np
import pytest
from framework_models import SIZE

from frameworks.jax import engine as flax_engine
from frameworks.jax import function as jax_function
from frameworks.torch.engine import TorchEngine
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import TensorSpec
from gauntlet.core.user_code import UserCode
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.targets import by_name

EAGER = {"compile": False, "trust": True}
IMAGES = np.random.default_rng(0).standard_normal((5, 3, SIZE, SIZE)).astype(np.float32)


def outputs(engine: Any, samples: NamedArrays) -> NamedArrays:
    engine.set_samples(samples)
    return batched_inference(engine, samples).run(2)


def test_torchscript_program_runs_as_pytorch_does(tmp_path: Path) -> None:
    import torch

    made = framework_models.torchscript(tmp_path).path.rename(tmp_path / "model.torchscript")
    found = outputs(TorchEngine(made, torch.get_num_threads(), EAGER), {"picture": IMAGES})
    with torch.inference_mode():
        expected = torch.jit.load(made)(torch.from_numpy(IMAGES)).numpy()
    np.testing.assert_allclose(found["output"], expected, atol=1e-5)
    with pytest.raises(StageError, match="PyTorch unpickles"):
        TorchEngine(made, torch.get_num_threads(), {"compile": False})
    assert by_name("torch-eager").rejection_reason(made) is None


def test_function_runs_as_jax_does_and_only_with_trust(tmp_path: Path) -> None:
    made = framework_models.jax_function(tmp_path)
    assert made.parameters is not None
    parameters = jax_function.read_parameters(made.parameters)
    spec = jax_function.JaxFunction(
        code=UserCode.read(tmp_path, "jaxnets:predict"),
        takes_parameters=True,
        inputs=(TensorSpec(name="picture", dtype="float32", shape=("batch", SIZE, SIZE, 3)),),
    )
    jax_function.save(tmp_path / "model.jax", spec, parameters)
    images = IMAGES.transpose(0, 2, 3, 1)
    found = outputs(flax_engine.load_engine(tmp_path / "model.jax", 1, {"trust": True}), {"picture": images})
    hidden = np.maximum(images.reshape(5, -1) @ parameters["dense/kernel"], 0)
    np.testing.assert_allclose(found["scores"], hidden @ parameters["head"], atol=1e-3)
    with pytest.raises(StageError, match="it holds the code of jaxnets:predict; refused"):
        flax_engine.load_engine(tmp_path / "model.jax", 1, {})
