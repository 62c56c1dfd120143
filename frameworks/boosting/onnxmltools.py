"""onnxmltools: export gradient-boosted trees to the tree operators of the domain `ai.onnx.ml`."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import onnx
from pydantic import Field

from frameworks.boosting.plain_trees import linear_graph
from frameworks.boosting.trees import LightGbm, XgBoost, load
from frameworks.graph_interface import at_opset, rename_tensors, set_shapes
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.signature import Signature
from tasks.export.base import Exporter

CONVERTER_OPSET = 15
"""The newest that onnxmltools writes for all trees."""
LIGHTGBM_ZERO = np.float32(1e-35)
"""The largest magnitude that LightGBM takes for 0."""


class OnnxMlTools(Exporter):
    """`convert_lightgbm` or `convert_xgboost`, without ZipMap: probabilities are an array, not a list of maps."""

    kind: Literal["onnxmltools"] = "onnxmltools"
    opset: int = Field(18, ge=13, le=22, description="ONNX operator set")

    framework: ClassVar[str] = "boosting"
    packages: ClassVar[dict[str, str]] = {"onnxmltools": "boosting"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Convert the classifier in `model` to `path`.

        Raises StageError when onnxmltools cannot convert it, or would do it wrongly without saying so.
        """
        trees = load(model)
        if what := trees.unsupported():
            raise StageError(
                f"{model.name}: it has {what}, which onnxmltools converts to another function. "
                "Fix: train it without, or provide the model as ONNX"
            )
        try:
            proto = at_opset(_convert(trees, signature), self.opset)
            if isinstance(trees, LightGbm) and trees.zero_is_missing:
                _make_zeros_missing(proto.graph)
        except Exception as error:  # the converters raise many types
            raise StageError(
                f"onnxmltools cannot convert {model.name}: {one_line(error)}. Fix: provide the model as ONNX"
            ) from error
        pairs = zip(proto.graph.output, signature.outputs, strict=True)
        rename_tensors(proto.graph, {value.name: spec.name for value, spec in pairs})
        set_shapes(proto.graph, (*signature.inputs, *signature.outputs))
        onnx.save(proto, path)


def _convert(trees: LightGbm | XgBoost, signature: Signature) -> onnx.ModelProto:
    if isinstance(trees, XgBoost) and trees.is_linear:
        return linear_graph(trees.learner, trees.classes, signature.inputs[0].name)
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    inputs: list[tuple[str, Any]] = [(signature.inputs[0].name, FloatTensorType([None, trees.features]))]
    how: dict[str, Any] = {"initial_types": inputs, "target_opset": CONVERTER_OPSET}
    if isinstance(trees, XgBoost):
        proto: onnx.ModelProto = onnxmltools.convert_xgboost(trees.plain().booster, **how)
    else:
        proto = onnxmltools.convert_lightgbm(trees.plain().booster, zipmap=False, **how)
    return proto


def _make_zeros_missing(graph: onnx.GraphProto) -> None:
    """Give the trees NaN for what LightGBM takes for 0, in place."""
    (name,) = (value.name for value in graph.input)
    rename_tensors(graph, {name: f"{name}__gaps"})
    graph.input[0].name = name
    constants = {"limit": LIGHTGBM_ZERO, "nan": np.float32(np.nan)}
    arrays = (onnx.numpy_helper.from_array(np.asarray(value), f"{name}__{key}") for key, value in constants.items())
    graph.initializer.extend(arrays)
    steps = (
        ("Abs", [name], "size"),
        ("LessOrEqual", [f"{name}__size", f"{name}__limit"], "zero"),
        ("Where", [f"{name}__zero", f"{name}__nan", name], "gaps"),
    )
    for place, (kind, inputs, output) in enumerate(steps):
        graph.node.insert(place, onnx.helper.make_node(kind, inputs, [f"{name}__{output}"]))
