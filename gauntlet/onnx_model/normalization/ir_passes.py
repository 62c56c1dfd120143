"""Run passes of onnx_ir on a model."""

import onnx
import onnx_ir as ir

from gauntlet.core.errors import StageError, one_line
from gauntlet.onnx_model.graph import all_graphs


def run_passes(proto: onnx.ModelProto, *passes: ir.passes.PassBase, always: bool = False) -> bool:
    """Run the passes in this order, and return whether one changed the model, which is then changed in place.

    With `always`, the model is taken over whatever they say: some do not notice changes of inner graphs.

    Raises:
        StageError: when the model has parts that onnx_ir does not read, and would lose.
    """
    if proto.training_info or any(graph.sparse_initializer for graph in all_graphs(proto.graph)):
        raise StageError("the model has sparse weights or training information, which onnx_ir does not keep")
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # it wraps whatever it meets
        raise StageError(f"onnx_ir cannot read the model: {one_line(error.__cause__ or error)}") from error
    modified = always
    for each in passes:
        result = each(model)
        model, modified = result.model, modified or result.modified
    if modified:
        proto.CopyFrom(ir.to_proto(model))
    return modified
