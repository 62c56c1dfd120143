"""PyTorch: networks that are trained or brought, and programs of `torch.export` and `torch.jit`."""

from pathlib import Path
from typing import ClassVar, Literal

from frameworks.torch.both_exporters import BothTorchExporters
from frameworks.torch.brought_network import TorchModel
from frameworks.torch.brought_program import ExportedProgram, ScriptedModule, save_module
from frameworks.torch.classifier_training import SUFFIXES, TorchTraining
from frameworks.torch.dense_training import DenseTraining
from frameworks.torch.dynamo import Dynamo
from frameworks.torch.program import is_scripted
from frameworks.torch.pruning import Structured, Unstructured
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import JsonObject
from gauntlet.frameworks.framework import Framework
from gauntlet.targets.base import FrameworkTarget


class _TorchTarget(FrameworkTarget):
    engine: ClassVar[str] = "frameworks.torch.engine"
    packages: ClassVar[dict[str, str]] = {"torch": "torch"}
    model_suffixes: ClassVar[tuple[str, ...]] = (".pt2", ".torchscript", ".pt")


class TorchEager(_TorchTarget):
    """A call of the network, operator by operator."""

    kind: Literal["torch-eager"] = "torch-eager"

    def engine_options(self) -> JsonObject:
        """Return also that nothing is compiled."""
        return super().engine_options() | {"compile": False}


class TorchCompiled(_TorchTarget):
    """The network through `torch.compile`, once for each batch size."""

    kind: Literal["torch-compiled"] = "torch-compiled"

    def engine_options(self) -> JsonObject:
        """Return also that the network is compiled."""
        return super().engine_options() | {"compile": True}


def recognize(source: str) -> None:
    """Refuse a file of weights alone; every other file of PyTorch's is known by its suffix."""
    path = Path(source)
    if path.suffix.lower() in SUFFIXES and path.is_file() and not is_scripted(path):
        raise ConfigError(
            f"{path}: not a TorchScript program, and weights alone need the code of their network. Fix: save the "
            "network with torch.export.save or torch.jit.save, export it to ONNX, or name its code and its weights: "
            "gauntlet run bring-your-own-onnx --set data.path=SAMPLES.npz "
            f"--set train='{{kind: torch-model, factory: FILE:CLASS, weights: {path}}}'"
        )


TORCH = Framework(
    name="torch",
    train=(TorchTraining, DenseTraining, TorchModel, ExportedProgram, ScriptedModule),
    export=(TorchScript, Dynamo, BothTorchExporters),
    target=(TorchEager, TorchCompiled),
    prune=(Structured, Unstructured),
    suffixes={".pt2": "exported-program", ".torchscript": "torchscript"} | dict.fromkeys(SUFFIXES, "torchscript"),
    archives=(".pt2", ".torchscript"),
    modules=dict.fromkeys(("torch", "torchvision", "torch_pruning", "safetensors"), "torch"),
    recognize=recognize,
    save=save_module,
)
