"""The size of a PyTorch network: operations, parameters, sparsity and compressed bytes."""

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tasks.prune import NetworkSize

if TYPE_CHECKING:
    import torch

    Layer = torch.nn.modules.conv._ConvNd | torch.nn.Linear


def size_of(network: "torch.nn.Module", inputs: Sequence["torch.Tensor"]) -> NetworkSize:
    """Measure a network. `inputs`: its arguments for a few samples, each of shape (n, ...)."""
    weights = [layer.weight.detach() for _, layer in prunable_layers(network)]
    return NetworkSize(
        macs=macs_of(network, inputs),
        parameters=sum(p.numel() for p in network.parameters()),
        sparsity=sum(int((w == 0).sum()) for w in weights) / max(1, sum(w.numel() for w in weights)),
    )


def compressed_bytes(network: "torch.nn.Module") -> int:
    """Return the size of all tensors, concatenated and compressed as gzip does."""
    compress = zlib.compressobj()
    written = sum(len(compress.compress(tensor.numpy().tobytes())) for tensor in network.state_dict().values())
    return written + len(compress.flush())


def prunable_layers(network: "torch.nn.Module") -> Iterator[tuple[str, "Layer"]]:
    """Yield path and module of each convolution and linear layer."""
    import torch

    for path, module in network.named_modules():
        if isinstance(module, torch.nn.modules.conv._ConvNd | torch.nn.Linear):
            yield path, module


def macs_of(network: "torch.nn.Module", inputs: Sequence["torch.Tensor"]) -> int:
    """Return the MACs per sample, in evaluation mode: half the FLOPs that PyTorch counts."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(*inputs)
    return int(counter.get_total_flops()) // 2 // len(inputs[0])


def channel_counts(before: "torch.nn.Module", after: "torch.nn.Module") -> dict[str, tuple[int, int]]:
    """Return the layers whose number of output channels differs: path -> (before, after)."""
    import torch

    def channels(network: "torch.nn.Module") -> dict[str, int]:
        layers = prunable_layers(network)
        return {p: m.out_features if isinstance(m, torch.nn.Linear) else m.out_channels for p, m in layers}

    old, new = channels(before), channels(after)
    return {path: (old[path], new[path]) for path in old if old[path] != new[path]}
