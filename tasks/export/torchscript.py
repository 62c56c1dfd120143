"""PyTorch's TorchScript exporter: it runs the network once and writes down what it sees."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from tasks.export.torch_call import arguments, dynamic_axes, exporting, functions_by_operator, user_files
from tasks.frozen import Frozen
from tasks.signature import Signature
from tasks.sources import torch as source
from tasks.sources.torch.code import FunctionName


class TorchScript(Frozen):
    """`torch.onnx.export(dynamo=False)`. Quick; what Python decides during the one run is frozen into the graph."""

    kind: Literal["torchscript"] = "torchscript"
    opset: int = Field(18, ge=13, le=20, description="ONNX operator set; 20 is the newest that this exporter writes")
    symbolics: FunctionName | None = Field(
        None,
        description="module:function, which returns symbolic functions by operator: {'aten::gelu': function(g, x)}",
    )
    folder: Path = Field(Path(), description="where that module's file is")

    takes: ClassVar[str] = "torch"

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return user_files(self.folder, self.symbolics)

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Export the network saved in `model` to `path`.

        Raises:
            StageError: when the exporter cannot.
        """
        import torch

        network, example = source.load(model)
        symbolics = functions_by_operator(self.folder, self.symbolics, "export.symbolics")
        with exporting("torchscript"), _registered(symbolics, self.opset), warnings.catch_warnings():
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
    """Register symbolic functions for one export: PyTorch keeps them for the whole process."""
    import torch

    for operator, function in symbolics.items():
        torch.onnx.register_custom_op_symbolic(operator, function, opset)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for operator in symbolics:
            torch.onnx.unregister_custom_op_symbolic(operator, opset)  # type: ignore[attr-defined]
