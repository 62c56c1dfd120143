"""PyTorch: networks that are trained or brought, and programs of `torch.export` and `torch.jit`."""

from pathlib import Path

from frameworks.torch.both_exporters import BothTorchExporters
from frameworks.torch.brought_network import TorchModel
from frameworks.torch.brought_program import ExportedProgram, ScriptedModule, save_module
from frameworks.torch.classifier_training import TorchTraining
from frameworks.torch.dense_training import DenseTraining
from frameworks.torch.dynamo import Dynamo
from frameworks.torch.program import is_scripted
from frameworks.torch.structured_pruning import Structured, Unstructured
from frameworks.torch.target import TorchCompiled, TorchEager
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.errors import ConfigError
from gauntlet.frameworks.framework import Framework

WEIGHTS = (".pt", ".pth", ".safetensors", ".ckpt")
"""Suffixes of files that may hold weights alone; a TorchScript program may have the first two, too."""


def recognize(source: str) -> None:
    """Refuse a file of weights alone; every other file of PyTorch's is known by its suffix."""
    path = Path(source)
    if path.suffix.lower() in WEIGHTS and path.is_file() and not is_scripted(path):
        raise ConfigError(
            f"{path}: not a TorchScript program, and weights alone need the code of their network. Fix: save the "
            "network with torch.export.save or torch.jit.save, export it to ONNX, or write a configuration with "
            "train.kind: torch-model, which names the code and the weights (of Lightning's .ckpt, with "
            "train.weights_key: state_dict)"
        )


TORCH = Framework(
    name="torch",
    train=(TorchTraining, DenseTraining, TorchModel, ExportedProgram, ScriptedModule),
    export=(TorchScript, Dynamo, BothTorchExporters),
    target=(TorchEager, TorchCompiled),
    prune=(Structured, Unstructured),
    suffixes={".pt2": "exported-program", ".torchscript": "torchscript"} | dict.fromkeys(WEIGHTS, "torchscript"),
    archives=(".pt2", ".torchscript"),
    modules=dict.fromkeys(("torch", "torchvision", "torch_pruning", "safetensors"), "torch"),
    recognize=recognize,
    save=save_module,
)
