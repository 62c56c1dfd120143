"""PyTorch's dynamo exporter, which captures the network for all declared sizes or fails."""

import warnings
from pathlib import Path
from typing import ClassVar, Literal

import onnx
from pydantic import Field

from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import FunctionName
from gauntlet.frameworks.torch import network as torch_network
from gauntlet.onnx_model.model_file import MAX_ONE_FILE_BYTES
from tasks.export.torch_common import arguments, clear_export_errors, dynamic_axes, functions_by_operator, user_files

SCOPES = "pkg.torch.onnx.name_scopes"


class Dynamo(Frozen):
    """`torch.onnx.export(dynamo=True)`. Slower; data-dependent control flow raises an error and is never frozen."""

    kind: Literal["dynamo"] = "dynamo"
    opset: int = Field(18, ge=18, le=24, description="ONNX operator set; 18 is the oldest that this exporter supports")
    optimize: bool = Field(True, description="let the exporter fold constants and fuse operators")
    custom_translation_table: FunctionName | None = Field(
        None,
        description="module:function that returns onnxscript functions: {torch.ops.aten.gelu.default: function(x)}",
    )
    code_folder: Path = Field(Path(), description="folder of that module's file")

    framework: ClassVar[str] = "torch"

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return user_files(self.code_folder, self.custom_translation_table)

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Export the network saved in `model` to `path`.

        Raises:
            StageError: when the exporter cannot export it.
        """
        import torch

        network, example = torch_network.load_network(model)
        translations = functions_by_operator(
            self.code_folder, self.custom_translation_table, "export.custom_translation_table"
        )
        size = sum(tensor.nbytes for tensor in network.state_dict().values())
        with clear_export_errors("dynamo"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own deprecated functions and generated names
            torch.onnx.export(
                **arguments(network, example, signature),
                f=path,
                dynamo=True,
                opset_version=self.opset,
                dynamic_shapes=tuple(dynamic_axes(spec) for spec in signature.inputs),
                custom_translation_table=translations or None,
                optimize=self.optimize,
                external_data=size > MAX_ONE_FILE_BYTES,
                verbose=False,
            )
        proto = onnx.load(path, load_external_data=False)
        _name_axes(proto, signature)
        _remove_local_paths(proto)
        onnx.save(proto, path)


def _name_axes(proto: onnx.ModelProto, signature: Signature) -> None:
    """Give the outputs' dynamic axes the names in the signature; the exporter may write expressions instead."""
    names = {spec.name: dynamic_axes(spec) for spec in signature.outputs}
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
