"""JAX functions that are brought with their parameters, or refused in a sentence."""

from collections.abc import Callable
from pathlib import Path

import framework_models
import numpy as np
import pytest
from framework_models import SIZE

from frameworks.jax import function as jax_function
from frameworks.jax.brought_function import JaxModel
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit

IMAGES = np.random.default_rng(1).standard_normal((20, SIZE, SIZE, 3)).astype(np.float32)
SIGNATURE = Signature(
    inputs=(TensorSpec(name="picture", dtype="float32", shape=("batch", SIZE, SIZE, 3)),), outputs=(), layout="NHWC"
)


@pytest.fixture
def config(tmp_path: Path) -> JaxModel:
    made = framework_models.jax_function(tmp_path)
    return JaxModel(function="jaxnets:predict", code_folder=tmp_path, parameters=made.parameters)


def test_golden_outputs_are_the_functions(config: JaxModel, workspace: Callable[..., Workspace]) -> None:
    out = workspace()
    report = config.fit({"test": ArraySplit({"picture": IMAGES})}, SIGNATURE, out)
    golden = Golden.load(out.path(report.artifacts["golden"]))
    with np.load(config.parameters) as weights:
        hidden = np.maximum(IMAGES.reshape(20, -1) @ weights["dense/kernel"], 0)
        scores = hidden @ weights["head"]
    assert np.allclose(golden.test_outputs["scores"], scores, atol=1e-4)
    assert [spec.shape for spec in report.facts.signature.outputs] == [("batch", 4), ("batch", 16)]
    assert {path.name for path in config.files()} == {"jaxnets.py", "parameters.npz", "METADATA"}


def test_parameters_may_be_what_flax_serialized(config: JaxModel, tmp_path: Path) -> None:
    from flax.serialization import msgpack_serialize

    path = tmp_path / "parameters.msgpack"
    path.write_bytes(msgpack_serialize({"dense": {"kernel": np.ones((2, 3))}, "head": np.zeros(4)}))
    found = jax_function.read_parameters(path)
    assert {name: array.shape for name, array in found.items()} == {"dense/kernel": (2, 3), "head": (4,)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": "jaxnets:missing"}, "jaxnets has no function 'missing'"),
        ({"function": "jaxnets:broken"}, "jaxnets:broken returns a str that holds str; expected an array"),
        ({"parameters": Path("weights.bin")}, "expected parameters in one of .npz, .msgpack"),
        ({"parameters": Path("nowhere.npz")}, "not a .npz file of arrays"),
        ({"parameters": None}, "the model takes the inputs parameters, image; the data has picture"),
    ],
)
def test_function_that_does_not_fit_is_refused(
    config: JaxModel, workspace: Callable[..., Workspace], change: dict[str, object], message: str
) -> None:
    with pytest.raises(StageError, match=message):
        config.replace(**change).fit({"test": ArraySplit({"picture": IMAGES})}, SIGNATURE, workspace())
