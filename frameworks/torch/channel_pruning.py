"""Channel pruning: which channels to remove, and how many, to meet a budget of multiply-accumulate operations.

torch-pruning finds the weights that must be removed together (Fang et al., DepGraph: Towards Any Structural Pruning,
2023), across residual sums, depthwise convolutions and concatenations. The number of channels is chosen here, because
torch-pruning's own rounding does not prune a layer that would become narrower than one step.
"""

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from frameworks.torch import network as torch_network
from frameworks.torch.network_size import macs_of
from gauntlet.core.errors import StageError, listed, one_line

if TYPE_CHECKING:
    import torch

BISECTION_STEPS = 8
MAX_NAMED = 12
"""Layers in a message."""


def prune_to_budget(
    network: "torch.nn.Module",
    inputs: Sequence["torch.Tensor"],
    macs: float,
    round_to: int,
    layers: Mapping[str, float] = MappingProxyType({}),
) -> "torch.nn.Module":
    """Return the largest pruned copy with at most a share `macs` of the operations; else the smallest possible one.

    `inputs` are the network's arguments for a few samples, each of shape (n, ...). Layers keep a multiple of `round_to`
    channels. `layers` are shares of channels to keep, by a pattern of the layers' names; the budget is met by the
    others.

    Raises:
        StageError: when the pruned copy does not run, the shapes of its outputs change, or no layer has such a name.
    """
    _require_names(network, layers)
    budget, low, high = macs * macs_of(network, inputs), 0.0, 1.0
    best = prune_channels(network, inputs, low, round_to, layers)
    for _ in range(BISECTION_STEPS):
        share = (low + high) / 2
        pruned = prune_channels(network, inputs, share, round_to, layers)
        if macs_of(pruned, inputs) <= budget:
            low, best = share, pruned
        else:
            high = share
    return best


def prune_channels(
    network: "torch.nn.Module",
    inputs: Sequence["torch.Tensor"],
    share: float,
    round_to: int,
    layers: Mapping[str, float] = MappingProxyType({}),
) -> "torch.nn.Module":
    """Keep about `share` of the channels of a copy, except at the outputs. Raises StageError when it does not run."""
    import torch
    import torch_pruning

    pruned = copy.deepcopy(network).eval()
    graph = torch_pruning.DependencyGraph()
    importance = torch_pruning.importance.GroupMagnitudeImportance()
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parameters outside layers; the shapes are compared below
            graph.build_dependency(pruned, [*inputs], output_transform=_with_output_nodes, verbose=False)
            names = {module: name for name, module in pruned.named_modules()}
            shares = ((group, _share_of(graph, group, names, layers, share)) for group in graph.get_all_groups())
            removals = [_removal(graph, group, importance, kept, round_to) for group, kept in shares]
            for module, function, channels in filter(None, removals):
                graph.get_pruning_group(module, function, channels).prune()
        with torch.no_grad():
            expected, actual = (_shapes(model(*inputs)) for model in (network.eval(), pruned))
    except Exception as error:  # layers may raise anything about a wrong number of channels
        raise StageError(
            f"the network cannot lose channels ({type(error).__name__}: {one_line(error)}); "
            "its code may depend on their number. Use kind: unstructured, or remove prune"
        ) from error
    if actual != expected:
        raise StageError(f"the pruned network has outputs of shape {actual}, not {expected}; remove prune")
    return pruned


def _require_names(network: "torch.nn.Module", layers: Mapping[str, float]) -> None:
    """Raise StageError where a pattern fits no layer with channels."""
    names = [name for name, module in network.named_modules() if hasattr(module, "weight")]
    for pattern in layers:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise StageError(f"prune.layers: no layer is named {pattern!r}; there are {listed(names, MAX_NAMED)}")


def _share_of(graph: Any, group: Any, names: Mapping[Any, str], layers: Mapping[str, float], share: float) -> float:
    """Return the share of channels that a group keeps: the largest that `layers` has for one of its layers."""
    members = {dep.target.module for dep, _ in group if graph.is_out_channel_pruning_fn(dep.handler)}
    layers_of_group = [names[module] for module in members if module in names]
    fixed = [kept for pattern, kept in layers.items() if any(fnmatchcase(name, pattern) for name in layers_of_group)]
    return max(fixed, default=share)


def _with_output_nodes(outputs: object) -> list["torch.Tensor"]:
    """Append one operation to each output, so that the dependency graph has a node for it."""
    return [tensor * 1 for tensor in torch_network.named_outputs(outputs).values() if tensor.requires_grad]


def _shapes(outputs: object) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in torch_network.named_outputs(outputs).values()]


def _removal(graph: Any, group: Any, importance: Any, share: float, round_to: int) -> tuple[Any, Any, list[int]] | None:
    """Return the root layer of a group, its pruning function, and the channels to remove; None to keep all."""
    from torch_pruning.ops import _OutputOp

    module, function = group[0].dep.target.module, group[0].dep.handler
    count, parts = graph.get_out_channels(module), _part_count(graph, group)
    keep = kept_channels(count, share, round_to, parts)
    at_output = any(isinstance(dep.target.module, _OutputOp) for dep, _ in group)
    if keep == count or at_output or (scores := importance(group)) is None:
        return None
    # The parts of a grouped layer keep equal sizes, so the same channels of each part are removed.
    size = count // parts
    least = scores.reshape(parts, size).mean(0).argsort(stable=True)[: (count - keep) // parts].tolist()
    return module, function, sorted(part * size + channel for part in range(parts) for channel in least)


def kept_channels(count: int, share: float, round_to: int, parts: int = 1) -> int:
    """Return how many of `count` channels to keep: a positive multiple of `round_to` and `parts`, or all."""
    step = math.lcm(round_to, parts)
    return min(count, max(1, round(share * count / step)) * step)


def _part_count(graph: Any, group: Any) -> int:
    """Return into how many equal parts grouped layers divide a group's channels; depthwise layers do not count."""
    import torch

    counts = []
    for dep, _ in group:
        layer = dep.target.module
        if not (isinstance(layer, torch.nn.modules.conv._ConvNd) and layer.groups == layer.out_channels):
            pruner, outputs = graph.get_pruner_of_module(layer), graph.is_out_channel_pruning_fn(dep.handler)
            counts.append(pruner.get_out_channel_groups(layer) if outputs else pruner.get_in_channel_groups(layer))
    return math.lcm(*counts)
