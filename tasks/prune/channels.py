"""Narrower layers: which channels go, and how many, so that the work fits a budget.

torch-pruning knows which weights must go together (Fang et al., DepGraph: Towards Any Structural Pruning, 2023): what
a residual sum adds, what a depthwise convolution carries on, what a concatenation moves. How many channels stay is
decided here, because its own rounding leaves a layer whole that would become narrower than one step.
"""

import copy
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.errors import StageError
from tasks.prune.size import macs_of
from tasks.sources import torch as source

if TYPE_CHECKING:
    import torch

HALVINGS = 8


def narrowed_to(
    network: "torch.nn.Module", inputs: Sequence["torch.Tensor"], macs: float, round_to: int
) -> "torch.nn.Module":
    """Return the largest narrower copy that keeps the budget; where none does, the smallest that there is.

    Args:
        network: stays as it is.
        inputs: its arguments for a few samples, each of shape (n, ...).
        macs: the budget, as a share of the network's own multiply-accumulate operations.
        round_to: the channels that a layer keeps are a multiple of this.

    Raises:
        StageError: when the copy does not run any more, or answers in another shape.
    """
    budget = macs * macs_of(network, inputs)
    fits, too_much = 0.0, 1.0
    best = narrowed(network, inputs, fits, round_to)
    for _ in range(HALVINGS):
        share = (fits + too_much) / 2
        tried = narrowed(network, inputs, share, round_to)
        if macs_of(tried, inputs) <= budget:
            fits, best = share, tried
        else:
            too_much = share
    return best


def narrowed(
    network: "torch.nn.Module", inputs: Sequence["torch.Tensor"], share: float, round_to: int
) -> "torch.nn.Module":
    """Return a copy in which every layer but those that answer keeps about `share` of its channels.

    Raises:
        StageError: when the copy does not run any more, or answers in another shape.
    """
    import torch
    import torch_pruning

    kept = copy.deepcopy(network).eval()
    graph = torch_pruning.DependencyGraph()
    importance = torch_pruning.importance.GroupMagnitudeImportance()
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parameters outside layers: what that breaks is seen below
            graph.build_dependency(kept, [*inputs], output_transform=_marked, verbose=False)
            cuts = [_cut(graph, group, importance, share, round_to) for group in graph.get_all_groups()]
            for module, function, channels in filter(None, cuts):
                graph.get_pruning_group(module, function, channels).prune()
        with torch.no_grad():
            expected, found = (_shapes(model(*inputs)) for model in (network.eval(), kept))
    except Exception as error:  # whatever a layer says about channels that it cannot take
        raise StageError(
            f"the network cannot lose channels ({type(error).__name__}: {' '.join(str(error).split())[:200]}); "
            "its code may count on their number. Take kind: unstructured, or leave prune out"
        ) from error
    if found != expected:
        raise StageError(f"without some channels the network answers {found}, not {expected}; leave prune out")
    return kept


def _marked(answer: object) -> list["torch.Tensor"]:
    """Return the outputs behind one more operation, so that the graph has a node of its own for each."""
    return [tensor * 1 for tensor in source.outputs_of(answer).values() if tensor.requires_grad]


def _shapes(answer: object) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in source.outputs_of(answer).values()]


def _cut(graph: Any, group: Any, importance: Any, share: float, round_to: int) -> tuple[Any, Any, list[int]] | None:
    """Return the layer at the root of a group, its pruning function, and the channels that go; None for none."""
    from torch_pruning.ops import _OutputOp

    module, function = group[0].dep.target.module, group[0].dep.handler
    count, parts = graph.get_out_channels(module), _parts(graph, group)
    keep = width(count, share, round_to, parts)
    if keep == count or any(isinstance(dep.target.module, _OutputOp) for dep, _ in group):
        return None
    scores = importance(group)
    if scores is None:
        return None
    # A grouped layer has parts of the same size before and after, so a channel goes at the same place of each.
    size = count // parts
    least = scores.reshape(parts, size).mean(0).argsort(stable=True)[: (count - keep) // parts].tolist()
    return module, function, sorted(part * size + place for part in range(parts) for place in least)


def width(count: int, share: float, round_to: int, parts: int = 1) -> int:
    """Return how many of `count` channels stay: a multiple of `round_to` and of `parts`, at least one; else all."""
    step = math.lcm(round_to, parts)
    return min(count, max(1, round(share * count / step)) * step)


def _parts(graph: Any, group: Any) -> int:
    """Return into how many equal parts the grouped layers of a group divide its channels; depthwise ones do not."""
    import torch

    found = [1]
    for dep, _ in group:
        layer = dep.target.module
        depthwise = isinstance(layer, torch.nn.modules.conv._ConvNd) and layer.groups == layer.out_channels
        if not depthwise:
            pruner = graph.get_pruner_of_module(layer)
            outwards = graph.is_out_channel_pruning_fn(dep.handler)
            found.append(pruner.get_out_channel_groups(layer) if outwards else pruner.get_in_channel_groups(layer))
    return math.lcm(*found)
