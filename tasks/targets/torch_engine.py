"""PyTorch in a worker: the network as it was trained, called as its users call it."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import StageError
from tasks.runtime.engines import Array, Engine, Feed, Port, type_name
from tasks.sources.torch import load, outputs_of, tensor

if TYPE_CHECKING:
    import torch

COMPILERS = ("c++", "g++", "clang++", "cl")


def unavailable(options: dict[str, Any]) -> str | None:
    """Return why not: no PyTorch, or nothing that could compile what its compiler writes."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return f"PyTorch cannot be imported: {error}"
    if options["compile"] and not any(map(shutil.which, COMPILERS)):
        return f"torch.compile needs a C++ compiler; none of {', '.join(COMPILERS)} is on the PATH"
    return None


class Loaded(Engine):
    """A network in evaluation mode."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        import torch

        self.runtime = f"torch {torch.__version__}"
        torch.set_num_threads(threads)
        try:
            self.network, example = load(model)
        except Exception as error:  # a file of another kind ends in many types
            raise StageError(
                f"{model.name}: not a network that this project saved: {' '.join(str(error).split())[:200]}"
            ) from error
        self.inputs = [_port(name, values) for name, values in example.items()]
        with torch.inference_mode():
            self.outputs = [_port(n, v) for n, v in outputs_of(self.network(*example.values())).items()]
        self.call: Callable[..., Any] = self.network
        if options["compile"]:
            from torch._inductor import config

            config.freezing = options["freezing"]
            self.call = torch.compile(self.network, dynamic=False)

    def get_inputs(self) -> Sequence[Port]:
        """Return the network's arguments, in their order."""
        return self.inputs

    def get_outputs(self) -> Sequence[Port]:
        """Return what the network returned for its example."""
        return self.outputs

    def bound(self, feed: Feed) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Make tensors of the inputs; a call is timed as users make it, with gradients off."""
        import torch

        arguments = [tensor(feed[port.name]) for port in self.inputs]

        def call() -> Any:
            with torch.inference_mode():
                return self.call(*arguments)

        return call, lambda answer: [value.numpy() for value in outputs_of(answer).values()]

    def placement(self, feed: Feed) -> dict[str, Any]:
        """Return the modules that compute, all where their weights are."""
        leaves = [(n, type(m).__name__) for n, m in self.network.named_modules() if not list(m.children())]
        devices = {str(parameter.device) for parameter in self.network.parameters()} or {"cpu"}
        return {"asked": "cpu", "nodes": {", ".join(sorted(devices)): [list(leaf) for leaf in leaves]}}


def _port(name: str, values: "torch.Tensor") -> Port:
    kind = str(values.dtype).removeprefix("torch.")
    return Port(name, type_name(kind), ["batch", *values.shape[1:]])
