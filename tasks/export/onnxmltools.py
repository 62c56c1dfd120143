"""onnxmltools: export gradient-boosted trees to the tree operators of the domain `ai.onnx.ml`."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import onnx
from pydantic import Field

from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature
from gauntlet.frameworks.boosting.classifier import LightGbm, XgBoost, load
from tasks.export.graph_interface import at_opset, rename_tensors, set_shapes

CONVERTER_OPSET = 15
"""The newest that onnxmltools writes for all trees."""


class OnnxMlTools(Frozen):
    """`convert_lightgbm` or `convert_xgboost`, without ZipMap: probabilities are an array, not a list of maps."""

    kind: Literal["onnxmltools"] = "onnxmltools"
    opset: int = Field(18, ge=13, le=22, description="ONNX operator set")

    framework: ClassVar[str] = "boosting"
    packages: ClassVar[dict[str, str]] = {"onnxmltools": "boosting"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Convert the classifier in `model` to `path`.

        Raises StageError when onnxmltools cannot convert it, or would do it wrongly without saying so.
        """
        classifier = load(model)
        if what := classifier.unsupported():
            raise StageError(
                f"{model.name}: it has {what}, which onnxmltools converts to another function. "
                "Fix: train it without, or provide the model as ONNX"
            )
        try:
            proto = at_opset(_convert(classifier, signature), self.opset)
        except Exception as error:  # the converters raise many types
            raise StageError(f"onnxmltools cannot convert {model.name}: {one_line(error)}") from error
        pairs = zip(proto.graph.output, signature.outputs, strict=True)
        rename_tensors(proto.graph, {value.name: spec.name for value, spec in pairs})
        set_shapes(proto.graph, (*signature.inputs, *signature.outputs))
        onnx.save(proto, path)


def _convert(classifier: LightGbm | XgBoost, signature: Signature) -> onnx.ModelProto:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    inputs: list[tuple[str, Any]] = [(signature.inputs[0].name, FloatTensorType([None, classifier.features]))]
    how: dict[str, Any] = {"initial_types": inputs, "target_opset": CONVERTER_OPSET}
    if isinstance(classifier, XgBoost):
        proto: onnx.ModelProto = onnxmltools.convert_xgboost(classifier.booster, **how)
    else:
        booster = classifier.with_float32_thresholds().booster
        proto = onnxmltools.convert_lightgbm(booster, zipmap=False, **how)
    return proto
