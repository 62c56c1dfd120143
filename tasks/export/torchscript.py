"""PyTorch's TorchScript exporter, which traces one run of the network."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import FunctionName
from gauntlet.frameworks.torch import network as torch_network
from tasks.export.torch_common import arguments, clear_export_errors, dynamic_axes, functions_by_operator, user_files


class TorchScript(Frozen):
    """`torch.onnx.export(dynamo=False)`. Fast; Python control flow of the traced run is frozen into the graph."""

    kind: Literal["torchscript"] = "torchscript"
    opset: int = Field(18, ge=13, le=20, description="ONNX operator set; 20 is the newest that this exporter supports")
    custom_symbolics: FunctionName | None = Field(
        None,
        description="module:function that returns symbolic functions by operator: {'aten::gelu': function(g, x)}",
    )
    code_folder: Path = Field(Path(), description="folder of that module's file")

    framework: ClassVar[str] = "torch"

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return user_files(self.code_folder, self.custom_symbolics)

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Export the network saved in `model` to `path`.

        Raises:
            StageError: when the exporter cannot export it.
        """
        import torch

        network, example = torch_network.load_network(model)
        symbolics = functions_by_operator(self.code_folder, self.custom_symbolics, "export.custom_symbolics")
        with clear_export_errors("torchscript"), _registered(symbolics, self.opset), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*legacy TorchScript-based ONNX export.*")
            torch.onnx.export(
                **arguments(network, example, signature),
                f=path,
                dynamo=False,
                opset_version=self.opset,
                dynamic_axes={spec.name: dynamic_axes(spec) for spec in (*signature.inputs, *signature.outputs)},
                training=torch.onnx.TrainingMode.EVAL,
                do_constant_folding=True,
            )


@contextlib.contextmanager
def _registered(symbolics: dict[str, Callable[..., Any]], opset: int) -> Iterator[None]:
    """Register symbolic functions for one export; PyTorch would keep them for the whole process."""
    import torch

    for operator, function in symbolics.items():
        torch.onnx.register_custom_op_symbolic(operator, function, opset)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for operator in symbolics:
            torch.onnx.unregister_custom_op_symbolic(operator, opset)  # type: ignore[attr-defined]
