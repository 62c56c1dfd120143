"""Engine for PyTorch: the trained network as its users call it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frameworks.session import FrameworkSession, LoadedModel, type_name
from frameworks.torch.network import load_network, named_outputs, tensor
from frameworks.torch.program import EXPORTED, SCRIPTED, load_program
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.runtime.engines.base import Engine, TensorInfo

if TYPE_CHECKING:
    import torch

COMPILERS = ("c++", "g++", "clang++", "cl")


def unavailable_reason(options: dict[str, Any]) -> str | None:
    """Return what is missing: PyTorch, or the C++ compiler that torch.compile needs."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return f"PyTorch cannot be imported: {error}"
    if options["compile"] and not any(map(shutil.which, COMPILERS)):
        return f"torch.compile needs a C++ compiler; none of {', '.join(COMPILERS)} is on the PATH"
    return None


class TorchEngine(Engine):
    """A network in evaluation mode; `options` are those of the target."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        import torch

        self.runtime = f"torch {torch.__version__}"
        torch.set_num_threads(threads)
        self.loaded: LoadedModel | None = None
        self.call: Callable[..., Any]
        if model.suffix in (EXPORTED, SCRIPTED):
            self.loaded = load_program(model, model.suffix, trust=options.get("trust", False))
            self.network = self.loaded.module
        else:
            self._load_network(model, options)
        self.call = self.network
        if options["compile"]:
            from torch._inductor import config

            config.freezing = True  # the weights are constants, which is faster
            self.call = torch.compile(self.network, dynamic=False)

    def _load_network(self, model: Path, options: dict[str, Any]) -> None:
        import torch

        try:
            self.network, example = load_network(model, trust=options.get("trust", False))
        except StageError:
            raise
        except Exception as error:  # a file of another kind raises many types
            summary = one_line(error)
            raise StageError(f"{model.name}: not a network saved by this project: {summary}") from error
        self.inputs = [_tensor_info(name, values) for name, values in example.items()]
        with torch.inference_mode():
            self.outputs = [_tensor_info(n, v) for n, v in named_outputs(self.network(*example.values())).items()]

    def set_samples(self, samples: NamedArrays) -> None:
        """Take the inputs of a program from the samples, and its outputs from one call; others know theirs."""
        if self.loaded is not None:
            session = FrameworkSession(self.loaded.inputs_of(samples), self.loaded.call)
            session.observe(samples)
            self.inputs, self.outputs = session.get_inputs(), session.get_outputs()

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Convert the inputs to tensors; a call is timed in inference mode, as users make it."""
        import torch

        as_tensor = tensor if self.loaded is None else torch.from_numpy  # a program says its types
        arguments = [as_tensor(np.asarray(feed[each.name], order="C")) for each in self.inputs]

        def call() -> Any:
            with torch.inference_mode():
                return self.call(*arguments)

        return call, lambda result: [value.detach().numpy() for value in named_outputs(result).values()]

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the leaf modules, all on the devices of the weights."""
        leaves = [[n, type(m).__name__] for n, m in self.network.named_modules() if not list(m.children())]
        devices = {str(parameter.device) for parameter in self.network.parameters()} or {"cpu"}
        return {"asked": "cpu", "nodes": {", ".join(sorted(devices)): leaves}}


load_engine = TorchEngine


def _tensor_info(name: str, values: "torch.Tensor") -> TensorInfo:
    return TensorInfo(name, type_name(str(values.dtype).removeprefix("torch.")), ["batch", *values.shape[1:]])
