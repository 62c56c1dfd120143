"""Weights fit a network wherever PyTorch or torchvision would load them, and nowhere else."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model
from torch import nn
from torchvision.models import DenseNet, googlenet

from frameworks.torch.weights import put_weights, read_weights
from gauntlet.core.errors import StageError


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
