"""Record what each module of a network computes, to locate later where an exported model first diverges."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from frameworks.torch.network import run_network
from gauntlet.core.arrays import Array, NamedArrays

if TYPE_CHECKING:
    import torch


def record_module_outputs(network: "torch.nn.Module", inputs: Sequence[Array]) -> NamedArrays:
    """Return the output of each leaf module for `inputs`, by the module's path.

    Repeated calls of a module get the suffix `_1`, `_2`, ..., as in TorchScript's names.
    """
    import torch

    outputs: NamedArrays = {}
    calls: Counter[str] = Counter()

    def record(path: str, _module: object, _inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            outputs[f"{path}_{calls[path]}" if calls[path] else path] = output.numpy().copy()
            calls[path] += 1

    leaves = [(path, module) for path, module in network.named_modules() if path and not list(module.children())]
    handles = [module.register_forward_hook(partial(record, path)) for path, module in leaves]
    try:
        run_network(network, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return outputs
