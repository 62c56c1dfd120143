"""PyTorch's TorchScript exporter: quick, one file, a named dynamic batch."""

import warnings
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.frozen import Frozen
from tasks.signature import Signature
from tasks.sources import torch as source


class TorchScript(Frozen):
    """`torch.onnx.export(dynamo=False)`."""

    kind: Literal["torchscript"] = "torchscript"
    opset: int = Field(18, ge=13, le=20, description="ONNX operator set; 20 is the newest that this exporter writes")

    def write(self, model: Path, path: Path) -> Signature:
        """Export the network saved in `model` to `path` and return its signature."""
        import torch

        network, signature = source.load(model)
        sample = torch.zeros(2, *(int(n) for n in signature.inputs[0].shape[1:]))
        names = [signature.inputs[0].name, signature.outputs[0].name]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*legacy TorchScript-based ONNX export.*")
            torch.onnx.export(
                network,
                (sample,),
                path,
                dynamo=False,
                opset_version=self.opset,
                input_names=names[:1],
                output_names=names[1:],
                dynamic_axes={name: {0: "batch"} for name in names},
                training=torch.onnx.TrainingMode.EVAL,
                do_constant_folding=True,
            )
        return signature
