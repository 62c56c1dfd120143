"""PyTorch's TorchScript exporter, which traces one run of the network."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from frameworks.torch.exporter import TorchExport, dynamic_axes
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import FunctionOrName


class TorchScript(TorchExport):
    """`torch.onnx.export(dynamo=False)`. Fast; Python control flow of the traced run is frozen into the graph."""

    kind: Literal["torchscript"] = "torchscript"
    opset: int = Field(18, ge=13, le=20, description="ONNX operator set; 20 is the newest that this exporter supports")
    custom_symbolics: FunctionOrName | None = Field(
        None, description="a function that returns symbolic functions by operator: {'aten::gelu': function(g, x)}"
    )

    functions_key: ClassVar[str] = "custom_symbolics"

    def export(self, arguments: dict[str, Any], signature: Signature, functions: dict[Any, Any]) -> None:
        """Trace the network."""
        import torch

        warnings.filterwarnings("ignore", message=".*legacy TorchScript-based ONNX export.*")
        with _registered(functions, self.opset), _attention_of_plain_operators():
            torch.onnx.export(
                **arguments,
                dynamo=False,
                dynamic_axes={spec.name: dynamic_axes(spec) for spec in (*signature.inputs, *signature.outputs)},
                training=torch.onnx.TrainingMode.EVAL,
                do_constant_folding=True,
            )


@contextlib.contextmanager
def _attention_of_plain_operators() -> Iterator[None]:
    """Keep PyTorch from computing attention without gradients by one operator, which it cannot export."""
    import torch

    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


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
