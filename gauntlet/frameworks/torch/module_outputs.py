"""What each module of a network computes: it tells later where an exported model leaves the right way."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.frameworks.torch.network import run_network

if TYPE_CHECKING:
    import torch


def record_module_outputs(network: "torch.nn.Module", inputs: Sequence[Array]) -> NamedArrays:
    """Return what each leaf module computes for `inputs`, by the module's path.

    A module that is called again gets the suffix `_1`, `_2`, ..., as TorchScript's names do.
    """
    seen: NamedArrays = {}
    with _record(network, seen):
        run_network(network, inputs)
    return seen


@contextmanager
def _record(network: "torch.nn.Module", seen: NamedArrays) -> Iterator[None]:
    import torch

    calls: Counter[str] = Counter()

    def hook(path: str) -> "torch.utils.hooks.RemovableHandle":
        def keep(_module: object, _inputs: object, output: object) -> None:
            if isinstance(output, torch.Tensor):
                seen[f"{path}_{calls[path]}" if calls[path] else path] = output.numpy().copy()
                calls[path] += 1

        handle: torch.utils.hooks.RemovableHandle = modules[path].register_forward_hook(keep)
        return handle

    modules = {path: module for path, module in network.named_modules() if path and not list(module.children())}
    handles = [hook(path) for path in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
