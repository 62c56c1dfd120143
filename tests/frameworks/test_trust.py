"""No framework's reader runs code from a file without trust; brought programs and functions run as targets."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import framework_models
import numpy as np
import onnx
import onnx_text
import pytest
import torch
from framework_models import SIZE

from flows.cli.main import main
from flows.record.home import Home
from frameworks.jax import engine as flax_engine
from frameworks.jax import function as jax_function
from frameworks.torch.engine import TorchEngine
from frameworks.torch.kinds import TorchEager
from frameworks.torch.network import load_network, save_network
from frameworks.torch.network_spec import ResizedNetwork, UserNetwork
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import TensorSpec
from gauntlet.core.user_code import UserCode
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.targets import by_name, trusting
from gauntlet.targets.ort import OrtCpu

NETWORK = """
import pathlib
import torch

pathlib.Path({marker!r}).touch()


def make():
    return torch.nn.Linear(3, 2)
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "code-ran"


@pytest.fixture
def hostile(tmp_path: Path, marker: Path) -> Path:
    """A file in this project's format, whose network is built by code in the file."""
    code = {"name": "hostile_nets:make", "files": {"hostile_nets.py": NETWORK.format(marker=str(marker))}}
    spec = UserNetwork.model_validate({"code": code})
    save_network(tmp_path / "x.pt", spec, torch.nn.Linear(3, 2), {"x": np.ones((2, 3), np.float32)})
    return tmp_path / "x.pt"


@pytest.mark.parametrize("pruned", [False, True])
def test_code_that_builds_a_network_runs_only_with_trust(hostile: Path, marker: Path, *, pruned: bool) -> None:
    if pruned:
        contents = torch.load(hostile, weights_only=True)
        base = UserNetwork.model_validate_json(contents["recipe"])
        contents["recipe"] = ResizedNetwork(base=base, attributes={}, tensors={}).model_dump_json()
        torch.save(contents, hostile)
    with pytest.raises(StageError, match=r"^x\.pt: it builds its network with code of its own, .*--trust"):
        load_network(hostile)
    assert not marker.exists()
    network, _ = load_network(hostile, trust=True)
    assert network.out_features == 2


class _Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("trust", [False, True])
def test_pickled_network_is_never_read(tmp_path: Path, marker: Path, *, trust: bool) -> None:
    torch.save(_Payload(marker), tmp_path / "y.pt")
    with pytest.raises(StageError, match=r"^y\.pt: it holds more than tensors.*Fix: .*export the network to ONNX"):
        load_network(tmp_path / "y.pt", trust=trust)
    assert not marker.exists()


def test_only_targets_of_frameworks_are_trusted() -> None:
    eager, cpu = trusting([by_name("torch-eager"), OrtCpu()])
    assert isinstance(eager, TorchEager)
    assert eager.options()["trust"] is True
    assert "trust" not in cpu.options()
    assert by_name("torch-eager").options()["trust"] is False
    assert eager.name == "torch-eager"


@pytest.fixture
def arguments(tmp_path: Path, hostile: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that races the hostile file beside the ONNX file of the same network."""
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    weights = torch.load(hostile, weights_only=True)["state"]
    model = onnx_text.model(
        "linear (float[n,3] x) => (float[n,2] y) <float[2,3] w, float[2] b> { y = Gemm<transB=1>(x, w, b) }",
        {"w": weights["weight"].numpy(), "b": weights["bias"].numpy()},
    )
    onnx.save(model, tmp_path / "m.onnx")
    words = ["bench", str(tmp_path / "m.onnx"), "--framework-model", str(hostile), "--batch", "2"]
    return [*words, "--targets", "torch-eager", "--rounds", "6", "--block-ms", "1", "--threads", "1"]


@pytest.mark.slow
def test_bench_refuses_the_code_of_a_file(
    arguments: list[str], marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "not ranked: x on torch-eager: x.pt: it builds its network with code of its own, hostile_nets:make" in told
    assert not marker.exists()


@pytest.mark.nightly
def test_bench_runs_the_code_of_a_file_that_is_stored_or_trusted(
    arguments: list[str], tmp_path: Path, hostile: Path, marker: Path
) -> None:
    assert main([*arguments, "--trust"]) == 0
    assert marker.exists()
    marker.unlink()
    copy = tmp_path / "model.pt"
    copy.write_bytes(hostile.read_bytes())
    Home.find().store.put(copy)
    assert main(arguments) == 0  # by content, whatever the name
    assert marker.exists()


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
