"""PyTorch in a worker: the network as it was trained, called as its users call it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.frameworks.torch.network import load_network, named_outputs, tensor
from gauntlet.runtime.engines.base import Engine, TensorInfo, type_name

if TYPE_CHECKING:
    import torch

COMPILERS = ("c++", "g++", "clang++", "cl")


def unavailable_reason(options: dict[str, Any]) -> str | None:
    """Return why not: no PyTorch, or nothing that could compile what its compiler writes."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return f"PyTorch cannot be imported: {error}"
    if options["compile"] and not any(map(shutil.which, COMPILERS)):
        return f"torch.compile needs a C++ compiler; none of {', '.join(COMPILERS)} is on the PATH"
    return None


class TorchEngine(Engine):
    """A network in evaluation mode."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        import torch

        self.runtime = f"torch {torch.__version__}"
        torch.set_num_threads(threads)
        try:
            self.network, example = load_network(model)
        except Exception as error:  # a file of another kind ends in many types
            raise StageError(
                f"{model.name}: not a network that this project saved: {' '.join(str(error).split())[:200]}"
            ) from error
        self.inputs = [_port(name, values) for name, values in example.items()]
        with torch.inference_mode():
            self.outputs = [_port(n, v) for n, v in named_outputs(self.network(*example.values())).items()]
        self.call: Callable[..., Any] = self.network
        if options["compile"]:
            from torch._inductor import config

            config.freezing = options["freezing"]
            self.call = torch.compile(self.network, dynamic=False)

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Make tensors of the inputs; a call is timed as users make it, with gradients off."""
        import torch

        arguments = [tensor(feed[port.name]) for port in self.inputs]

        def call() -> Any:
            with torch.inference_mode():
                return self.call(*arguments)

        return call, lambda answer: [value.numpy() for value in named_outputs(answer).values()]

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the modules that compute, all where their weights are."""
        leaves = [(n, type(m).__name__) for n, m in self.network.named_modules() if not list(m.children())]
        devices = {str(parameter.device) for parameter in self.network.parameters()} or {"cpu"}
        return {"asked": "cpu", "nodes": {", ".join(sorted(devices)): [list(leaf) for leaf in leaves]}}


def load_engine(model: Path, threads: int, options: dict[str, Any]) -> TorchEngine:
    """Load a model; `options` are those of the target."""
    return TorchEngine(model, threads, options)


def _port(name: str, values: "torch.Tensor") -> TensorInfo:
    kind = str(values.dtype).removeprefix("torch.")
    return TensorInfo(name, type_name(kind), ["batch", *values.shape[1:]])
