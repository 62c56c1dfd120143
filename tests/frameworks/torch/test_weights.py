"""Weights fit a network wherever PyTorch or torchvision would load them, and nowhere else."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_model
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch_networks import SOUND, write_network
from torchvision.models import DenseNet, googlenet

from frameworks.torch.kinds import recognize
from frameworks.torch.program import EXPORTED, SCRIPTED, read_program
from frameworks.torch.weights import put_weights, read_weights
from gauntlet.core.errors import ConfigError, StageError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.scores.weight = self.words.weight


def unequal(network: nn.Module, expected: dict[str, torch.Tensor]) -> list[str]:
    """The names of the network's weights that differ."""
    state = network.state_dict()
    return [name for name, tensor in state.items() if not torch.equal(tensor, expected[name])]


def test_tied_weights_are_loaded_when_the_file_stores_them_once(tmp_path: Path) -> None:
    source, network = Tied(), Tied()
    save_model(source, str(tmp_path / "tied.safetensors"))
    weights = read_weights(tmp_path / "tied.safetensors")
    assert len(weights) == 1
    put_weights(network, weights, "tied.safetensors")
    assert unequal(network, source.state_dict()) == []


def test_weights_are_refused_when_a_layer_of_the_same_shape_is_missing() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    weights = {name: tensor for name, tensor in network.state_dict().items() if name != "1.weight"}
    with pytest.raises(StageError, match=r"does not fit the network: missing: 1\.weight"):
        put_weights(network, weights, "w.pt")


def test_lazy_layers_get_their_shapes_from_the_file() -> None:
    made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    lazy = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    put_weights(lazy, made.state_dict(), "w.pt")
    x = torch.randn(5, 4)
    assert torch.equal(lazy.eval()(x), made.eval()(x))


def test_batch_norms_are_loaded_when_the_file_does_not_count_their_batches() -> None:
    source, network = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    source(torch.randn(8, 3))
    state = source.state_dict()
    put_weights(network, {name: state[name] for name in state if name != "num_batches_tracked"}, "w.pt")
    assert unequal(network, state | {"num_batches_tracked": torch.tensor(0)}) == []


def test_densenet_is_loaded_when_the_file_has_the_names_of_torchvisions_published_one() -> None:
    source, network = (DenseNet(4, (2, 1), 8, num_classes=3) for _ in range(2))
    state = source.state_dict()
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))([12])", r"\1.\2", name): tensor for name, tensor in state.items()}
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    put_weights(network, old, "densenet.pth")
    assert unequal(network, state) == []


def test_auxiliary_heads_are_left_out_when_googlenet_has_none() -> None:
    published = googlenet(weights=None, init_weights=False, aux_logits=True).state_dict()
    network = googlenet(weights=None, init_weights=False, aux_logits=False)
    put_weights(network, published, "googlenet.pth")
    assert unequal(network, published) == []
    with pytest.raises(StageError, match=r"unexpected: aux1\.fc1\.weight"):
        put_weights(nn.Linear(2, 2), nn.Linear(2, 2).state_dict() | {"aux1.fc1.weight": torch.zeros(2)}, "w.pt")


def test_weights_are_found_in_a_checkpoint_when_their_key_is_named(take, tmp_path: Path) -> None:
    weights = torch.load(write_network(tmp_path / "user", SOUND), weights_only=True)
    torch.save({"model": weights, "ema": weights, "epoch": 7}, tmp_path / "checkpoint.pt")
    assert take(weights=tmp_path / "checkpoint.pt", weights_key="model").artifacts
    with pytest.raises(StageError, match=r"no state dict .* but model, ema, epoch. Fix: .* train.weights_key"):
        take(weights=tmp_path / "checkpoint.pt")
    with pytest.raises(StageError, match=r"train.weights_key: .* has no 'net'; it has model, ema, epoch"):
        take(weights=tmp_path / "checkpoint.pt", weights_key="net")


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "ema"])
def test_only_state_dict_of_a_checkpoint_is_found(tmp_path: Path, key: str) -> None:
    state = nn.Linear(2, 3).state_dict()
    torch.save({key: state, "optimizer": {"lr": 0.1}, "epoch": 7}, tmp_path / "checkpoint.pt")
    torch.testing.assert_close(dict(read_weights(tmp_path / "checkpoint.pt")), dict(state))


WRAPPERS = (torch.compile, AveragedModel, lambda net: nn.DataParallel(cast(Any, torch.compile(net))))


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [*WRAPPERS, lambda net: nn.ModuleDict({"net": net})])
def test_name_of_a_wrapper_is_left_out(wrap: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    trained, network = (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval() for _ in range(2))
    put_weights(network, wrap(trained).state_dict(), "w.pt")
    torch.testing.assert_close(network(torch.eye(2)), trained(torch.eye(2)))
    own = nn.ModuleDict({"module": trained})  # that is its name, and no wrapper's
    put_weights(own, own.state_dict(), "w.pt")


def test_weights_are_refused_with_every_name_when_they_do_not_fit(take, tmp_path: Path) -> None:
    weights = torch.load(write_network(tmp_path / "user", SOUND), weights_only=True)
    torch.save({"conv.weight": weights["conv.weight"], "tail.bias": torch.zeros(4)}, tmp_path / "w.pt")
    with pytest.raises(StageError, match=r"missing: conv.bias, head.weight, head.bias; unexpected: tail.bias"):
        take(weights=tmp_path / "w.pt")


def test_weights_are_refused_with_the_way_out_when_a_whole_network_is_pickled(take, tmp_path: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 3)), tmp_path / "w.pt")
    message = r"holds more than tensors \(torch.nn.modules.container.Sequential\).*Fix: .*network.state_dict\(\)"
    with pytest.raises(StageError, match=message):
        take(weights=tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.pt", None, "no such file"),
        ("w.pt", b"", "not readable as a state dict"),
        ("w.pt", b"hello", "not readable as a state dict"),
        ("w.safetensors", b"hello", "not a safetensors file"),
    ],
)
def test_weights_are_refused_when_they_are_no_weights(
    take, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StageError, match=f"train.weights: .*{name}: {message}"):
        take(weights=tmp_path / name)


def flip(path: Path, weight: torch.Tensor) -> None:
    """Flip the highest bit of the exponent of a tensor's first number in a file: below 2, it is 2**128 times larger."""
    content, stored = bytearray(path.read_bytes()), weight.detach().numpy().tobytes()
    content[content.index(stored) + 3] ^= 0x40
    path.write_bytes(content)


def test_weights_are_refused_when_one_bit_of_the_file_was_flipped(take, tmp_path: Path) -> None:
    weights = write_network(tmp_path, SOUND)
    flip(weights, torch.load(weights)["conv.weight"])
    assert torch.load(weights)["conv.weight"].abs().max() > 1e30  # PyTorch itself does not see it
    with pytest.raises(StageError, match=r"train.weights: .*damaged: \S+ does not fit its checksum"):
        take(weights=weights)


def test_weights_are_read_when_they_were_written_without_checksums(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(3)}, tmp_path / "w.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_weights(tmp_path / "w.pt")["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("suffix", [EXPORTED, SCRIPTED])
def test_program_is_refused_when_one_bit_of_the_file_was_flipped(tmp_path: Path, suffix: str) -> None:
    network, images = nn.Conv2d(3, 4, 3), (torch.zeros(2, 3, 8, 8),)
    path = tmp_path / f"model{suffix}"
    if suffix == EXPORTED:
        torch.export.save(torch.export.export(network, images), path)
    else:
        torch.jit.save(torch.jit.trace(network, images), path)
    read_program(path, suffix, trust=True)
    flip(path, network.weight)
    with pytest.raises(StageError, match=r"damaged: \S+ does not fit its checksum"):
        read_program(path, suffix, trust=True)


def test_weights_alone_are_refused_with_the_command_that_names_their_code(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match=r"factory: FILE:CLASS, weights: .*weights\.pt\}'$"):
        recognize(str(tmp_path / "weights.pt"))
