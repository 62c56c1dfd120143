"""Channels that go together: whatever the shape of the network, what is left computes what the whole one did."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from frameworks.torch.architectures import NamedArchitecture
from frameworks.torch.channel_pruning import kept_channels, prune_channels, prune_to_budget
from frameworks.torch.network_size import channel_counts, macs_of
from frameworks.torch.network_spec import ResizedNetwork
from gauntlet.core.errors import StageError

PICTURES = [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))]
COUNTS, STEPS, PARTS = st.integers(1, 512), st.sampled_from([1, 2, 8, 16, 32]), st.sampled_from([1, 2, 4, 32])


class Block(nn.Module):
    """What most networks are made of: a path with an inner layer of some form, and a sum or a concatenation."""

    def __init__(self, inner: nn.Module, join: str) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.inner, self.join = inner, join
        self.head = nn.Linear(32 if join == "concatenation" else 16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.inner(x)
        x = torch.cat([x, y], 1) if self.join == "concatenation" else x + y if self.join == "sum" else y
        return self.head(x.mean((2, 3)))


def conv(groups: int = 1) -> nn.Module:
    return nn.Conv2d(16, 16, 3, padding=1, groups=groups, bias=False)


BLOCKS = {
    "residual": lambda: Block(nn.Sequential(conv(), nn.BatchNorm2d(16), nn.ReLU(), conv()), "sum"),
    "depthwise": lambda: Block(nn.Sequential(conv(groups=16), nn.BatchNorm2d(16), conv()), "sum"),
    "grouped": lambda: Block(nn.Sequential(conv(groups=4), nn.BatchNorm2d(16), nn.ReLU(), conv(groups=2)), "none"),
    "grouped_residual": lambda: Block(nn.Sequential(conv(groups=4), nn.BatchNorm2d(16)), "sum"),
    "concatenation": lambda: Block(nn.Sequential(conv(), nn.BatchNorm2d(16), nn.ReLU()), "concatenation"),
}


def with_idle_channels(network: nn.Module) -> nn.Module:
    """Make every other channel of every layer but the last one do nothing: no weight into it, and none of its norm."""
    torch.manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            for tensor in filter(lambda t: t is not None, (module.weight, module.bias)):
                nn.init.uniform_(tensor, 0.5, 1.0)
                tensor.data[1::2] = 0
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.running_mean, 0.0, 0.1)
    return network.eval()


@pytest.mark.parametrize("form", BLOCKS)
def test_network_answers_the_same_when_only_idle_channels_went(form: str) -> None:
    network = with_idle_channels(BLOCKS[form]())
    half = prune_channels(network, PICTURES, 0.5, round_to=4)
    convolutions = [module for module in half.modules() if isinstance(module, nn.Conv2d)]
    assert all(module.out_channels == 8 for module in convolutions)
    assert all(module.weight.shape[:2] == (8, module.in_channels // module.groups) for module in convolutions)
    with torch.no_grad():
        assert torch.allclose(half(*PICTURES), network(*PICTURES), atol=1e-5)
        other = prune_channels(network, PICTURES, 0.25, round_to=4)  # now channels that matter go too
        assert not torch.allclose(other(*PICTURES), network(*PICTURES), atol=1e-2)


@pytest.mark.parametrize("architecture", ["small-cnn", "mobilenet_v2", "squeezenet1_1"])
def test_network_is_built_again_from_its_recipe_when_it_lost_channels(architecture: str) -> None:
    recipe = NamedArchitecture(architecture=architecture, channels=3, height=32, width=32, classes=4)
    pictures, network = [torch.randn(2, 3, 32, 32)], recipe.build().eval()
    half = prune_channels(network, pictures, 0.5, round_to=8)
    assert 0.2 < macs_of(half, pictures) / macs_of(network, pictures) < 0.4
    written = ResizedNetwork.of(recipe, half).model_dump_json()
    again = ResizedNetwork.model_validate_json(written).build()
    again.load_state_dict(half.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(*pictures), half(*pictures))


@pytest.mark.parametrize("budget", [0.9, 0.5, 0.2])
def test_budget_is_kept_and_used_when_channels_may_go_one_by_one(budget: float) -> None:
    network = BLOCKS["residual"]()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    share = macs_of(prune_to_budget(network, PICTURES, budget, 1), PICTURES) / macs_of(network, PICTURES)
    assert 0.8 * budget < share <= budget
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_smallest_network_is_returned_when_no_width_keeps_the_budget() -> None:
    network = BLOCKS["residual"]()
    smallest = prune_to_budget(network, PICTURES, 0.01, 8)
    assert set(channel_counts(network, smallest).values()) == {(16, 8)}
    assert macs_of(smallest, PICTURES) > 0.01 * macs_of(network, PICTURES)


def test_layer_stays_whole_when_it_is_narrower_than_one_step() -> None:
    network = BLOCKS["residual"]()
    assert channel_counts(network, prune_channels(network, PICTURES, 0.1, round_to=32)) == {}


def test_layer_that_answers_stays_whole_when_all_others_lose_channels() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.classes, self.boxes = nn.Conv2d(3, 16, 3), nn.Linear(16, 8), nn.Conv2d(16, 8, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            x = self.stem(x).relu()
            return {"classes": self.classes(x.mean((2, 3))).softmax(1), "boxes": self.boxes(x)}

    network = TwoHeads()
    assert channel_counts(network, prune_channels(network, PICTURES, 0.5, round_to=1)) == {"stem": (16, 8)}


def test_network_is_refused_in_one_line_when_its_code_counts_on_a_number_of_channels() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).reshape(-1, 16, 64).mean(2))

    with pytest.raises(StageError, match="cannot lose channels") as caught:
        prune_channels(Fixed(), PICTURES, 0.5, round_to=1)
    assert len(str(caught.value).splitlines()) == 1


@given(COUNTS, st.floats(0, 1), STEPS, PARTS)
def test_width_is_a_multiple_of_step_and_parts_or_all_of_it(count: int, share: float, step: int, parts: int) -> None:
    kept = kept_channels(count, share, step, parts)
    assert 1 <= kept <= count
    assert kept == count or (kept % step, kept % parts) == (0, 0)


@given(COUNTS, st.floats(0, 1), st.floats(0, 1), STEPS, PARTS)
def test_width_does_not_grow_when_the_share_falls(count: int, a: float, b: float, step: int, parts: int) -> None:
    assert kept_channels(count, min(a, b), step, parts) <= kept_channels(count, max(a, b), step, parts)


def test_named_layers_keep_their_share_and_the_others_meet_the_budget() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(),
        nn.Linear(32 * 4, 4),
    ).eval()  # fmt: skip

    def channels(layers: dict[str, float]) -> tuple[list[int], float]:
        pruned = prune_to_budget(network, PICTURES, 0.5, 1, layers)
        share = macs_of(pruned, PICTURES) / macs_of(network, PICTURES)
        return [module.out_channels for module in pruned.modules() if isinstance(module, nn.Conv2d)], share

    (alike, one), (whole, other), (fixed, _) = map(channels, ({}, {"0": 1}, {"0": 1, "[24]": 0.5}))
    assert max(one, other) <= 0.5
    assert whole[0] == 32 > alike[0]
    assert max(whole[1:]) < max(alike[1:])
    assert fixed == [32, 16, 16]


def test_layer_that_is_not_there_is_refused_with_those_that_are() -> None:
    network = BLOCKS["residual"]()
    with pytest.raises(StageError, match=r"no layer is named 'layer1.\*'; there are stem.0, stem.1, inner.0"):
        prune_to_budget(network, PICTURES, 0.5, 1, {"layer1.*": 1})
