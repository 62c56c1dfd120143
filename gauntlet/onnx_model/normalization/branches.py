"""If nodes whose condition is a constant, replaced by the branch that is taken."""

import logging

import onnx
import onnx_ir as ir

from gauntlet.onnx_model.graph import all_nodes
from gauntlet.onnx_model.normalization.ir_passes import run_passes

MOST_ROUNDS = 8
"""A branch may hold further If nodes, which become constant one level at a time."""


def fold_branches(proto: onnx.ModelProto) -> str:
    """Fold constants and replace If nodes with a constant condition; unchanged where no condition is constant."""
    before = if_nodes(proto)
    if not before:
        return ""
    folded = onnx.ModelProto()
    folded.CopyFrom(proto)
    left = before
    for _ in range(MOST_ROUNDS):
        _fold(folded)
        was, left = left, if_nodes(folded)
        if left == was or not left:
            break
    if left == before:
        return ""
    proto.CopyFrom(folded)
    return f"folded {before - left} of {before} If nodes, whose condition is constant"


def if_nodes(proto: onnx.ModelProto) -> int:
    """Return the number of If nodes, those inside others included."""
    return sum(node.op_type == "If" for node in all_nodes(proto.graph))


def _fold(proto: onnx.ModelProto) -> None:
    from onnxscript.optimizer import fold_constants_ir

    logger = logging.getLogger("onnxscript.optimizer")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of every node that it leaves as it is
    try:
        run_passes(proto, _FoldConstants(fold_constants_ir))
    finally:
        logger.setLevel(level)


class _FoldConstants(ir.passes.InPlacePass):
    """onnxscript's constant folding, with the shapes that ONNX infers."""

    def __init__(self, fold: object) -> None:
        super().__init__()
        self.fold = fold

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Fold the model's constants in place."""
        result = self.fold(model, onnx_shape_inference=True)  # type: ignore[operator]
        return ir.passes.PassResult(model, modified=bool(result.modified))
