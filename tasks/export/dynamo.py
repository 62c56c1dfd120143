"""PyTorch's newer exporter: it proves what the network does for every size that it may be given, or refuses."""

import warnings
from pathlib import Path
from typing import ClassVar, Literal

import onnx
from pydantic import Field

from tasks.export.torch_call import arguments, dynamic_axes, exporting, functions_by_operator, user_files
from tasks.frozen import Frozen
from tasks.model_file import MAX_ONE_FILE_BYTES
from tasks.signature import Signature
from tasks.sources import torch as source
from tasks.sources.torch.code import FunctionName

SCOPES = "pkg.torch.onnx.name_scopes"


class Dynamo(Frozen):
    """`torch.onnx.export(dynamo=True)`. Slower; control flow that depends on the data is refused, not frozen."""

    kind: Literal["dynamo"] = "dynamo"
    opset: int = Field(18, ge=18, le=24, description="ONNX operator set; 18 is the oldest that this exporter writes")
    optimize: bool = Field(True, description="let the exporter fold constants and fuse what belongs together")
    translations: FunctionName | None = Field(
        None,
        description="module:function, which returns onnxscript functions: {torch.ops.aten.gelu.default: function(x)}",
    )
    folder: Path = Field(Path(), description="where that module's file is")

    takes: ClassVar[str] = "torch"

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return user_files(self.folder, self.translations)

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Export the network saved in `model` to `path`.

        Raises:
            StageError: when the exporter cannot.
        """
        import torch

        network, example = source.load(model)
        translations = functions_by_operator(self.folder, self.translations, "export.translations")
        size = sum(tensor.nbytes for tensor in network.state_dict().values())
        with exporting("dynamo"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own deprecated parts, and of names that it chose itself
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
        _forget_this_machine(proto)
        onnx.save(proto, path)


def _name_axes(proto: onnx.ModelProto, signature: Signature) -> None:
    """Give the dynamic axes of the outputs the signature's names: the exporter may have made an expression of them."""
    named = {spec.name: dynamic_axes(spec) for spec in signature.outputs}
    for value in proto.graph.output:
        for place, name in named.get(value.name, {}).items():
            axes = value.type.tensor_type.shape.dim
            if place < len(axes) and not axes[place].HasField("dim_value"):
                axes[place].dim_param = name


def _forget_this_machine(proto: onnx.ModelProto) -> None:
    """Drop stack traces, which name this machine's folders; keep the modules' paths, which tell a node's origin."""
    del proto.graph.metadata_props[:]
    for node in proto.graph.node:
        kept = {entry.key: entry.value for entry in node.metadata_props if entry.key == SCOPES}
        onnx.helper.set_metadata_props(node, kept)
