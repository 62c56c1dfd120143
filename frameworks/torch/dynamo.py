"""PyTorch's dynamo exporter, which captures the network for all declared sizes or fails."""

import warnings
from typing import Any, ClassVar, Literal

import onnx
from pydantic import Field

from frameworks.torch.exporter import TorchExport, dynamic_axes
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import FunctionOrName
from gauntlet.onnx_model.model_file import MAX_ONE_FILE_BYTES

SCOPES = "pkg.torch.onnx.name_scopes"


class Dynamo(TorchExport):
    """`torch.onnx.export(dynamo=True)`. Slower; data-dependent control flow raises an error and is never frozen."""

    kind: Literal["dynamo"] = "dynamo"
    opset: int = Field(18, ge=18, le=24, description="ONNX operator set; 18 is the oldest that this exporter supports")
    custom_translation_table: FunctionOrName | None = Field(
        None, description="a function that returns onnxscript functions: {torch.ops.aten.gelu.default: function(x)}"
    )

    functions_key: ClassVar[str] = "custom_translation_table"

    def export(self, arguments: dict[str, Any], signature: Signature, functions: dict[Any, Any]) -> None:
        """Capture the network."""
        import onnxscript  # noqa: F401 - PyTorch translates with it: imported here, its version is in the cache key
        import torch
        from onnx_ir.passes.common import NameFixPass

        warnings.simplefilter("ignore")  # about its own deprecated functions and generated names
        model, axes = arguments["model"], tuple(dynamic_axes(spec) for spec in signature.inputs)
        captured = isinstance(model, torch.export.ExportedProgram)  # it says which of its axes are open
        weights = model.state_dict if captured else model.state_dict()
        program = torch.onnx.export(
            **arguments | {"f": None},
            dynamo=True,
            dynamic_shapes=None if captured else axes,
            custom_translation_table=functions or None,
            optimize=True,
            verbose=False,
        )
        assert program is not None
        NameFixPass()(program.model)  # an inner tensor may have the name that an output was given
        program.save(arguments["f"], external_data=sum(t.nbytes for t in weights.values()) > MAX_ONE_FILE_BYTES)
        proto = onnx.load(arguments["f"], load_external_data=False)
        _name_axes(proto, signature)
        _remove_local_paths(proto)
        onnx.save(proto, arguments["f"])


def _name_axes(proto: onnx.ModelProto, signature: Signature) -> None:
    """Give the dynamic axes of inputs and outputs the names in the signature.

    The exporter may write expressions instead, or the symbols of a program that was captured before.
    """
    names = {spec.name: dynamic_axes(spec) for spec in (*signature.inputs, *signature.outputs)}
    symbols: dict[str, str] = {}
    for value in proto.graph.input:
        for index, name in names.get(value.name, {}).items():
            symbols[value.type.tensor_type.shape.dim[index].dim_param] = name
    symbols.pop("", None)  # a fixed axis
    for value in (*proto.graph.input, *proto.graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in symbols:
                axis.dim_param = symbols[axis.dim_param]
    for value in proto.graph.output:
        for index, name in names.get(value.name, {}).items():
            axes = value.type.tensor_type.shape.dim
            if index < len(axes) and not axes[index].HasField("dim_value"):
                axes[index].dim_param = name


def _remove_local_paths(proto: onnx.ModelProto) -> None:
    """Remove stack traces, which contain local paths; keep module paths, which locate a node in the network."""
    del proto.graph.metadata_props[:]
    for node in proto.graph.node:
        kept = {entry.key: entry.value for entry in node.metadata_props if entry.key == SCOPES}
        onnx.helper.set_metadata_props(node, kept)
