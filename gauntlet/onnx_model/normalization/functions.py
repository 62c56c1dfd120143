"""Model-local functions, replaced by their nodes: quantizers do not look into them."""

import onnx
import onnx.inliner

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import replace_model


def inline_functions(proto: onnx.ModelProto) -> str:
    """Replace every call of a model-local function by the function's nodes."""
    if not proto.functions:
        return ""
    names = sorted({function.name for function in proto.functions})
    inlined = onnx.inliner.inline_local_functions(proto, convert_version=True)
    if inlined.functions:
        raise StageError(f"the function {inlined.functions[0].name} cannot be inlined")
    replace_model(proto, inlined)
    return f"inlined {len(names)} function{'s' if len(names) > 1 else ''}: {', '.join(names[:3])}"
