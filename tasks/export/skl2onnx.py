"""skl2onnx: export scikit-learn estimators, mostly to operators of the domain `ai.onnx.ml`."""

import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

import onnx
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.frameworks.sklearn import estimator as sklearn_estimator
from tasks.export.graph_interface import at_opset, rename_tensors, set_shapes

ML_OPSET = 3
"""Opset of `ai.onnx.ml`. Newer ones replace the tree operators, which skl2onnx does not yet support for all models."""


class Skl2Onnx(Frozen):
    """`skl2onnx.convert_sklearn`, without ZipMap: probabilities are an array, not a list of maps."""

    kind: Literal["skl2onnx"] = "skl2onnx"
    opset: int = Field(18, ge=13, le=22, description="ONNX operator set; 22 is the newest that skl2onnx writes")

    framework: ClassVar[str] = "sklearn"
    packages: ClassVar[dict[str, str]] = {"skl2onnx": "sklearn", "skops": "sklearn"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Convert the estimator saved in `model` to `path`. Raises StageError when skl2onnx cannot convert it."""
        estimator = sklearn_estimator.load(model, None)
        proto = at_opset(self._convert(estimator, signature), self.opset)
        if len(proto.graph.output) != len(signature.outputs):
            actual, expected = ([t.name for t in ts] for ts in (proto.graph.output, signature.outputs))
            name = sklearn_estimator.describe(estimator)
            raise StageError(f"skl2onnx gives the outputs {actual} for {name}, not {expected}")
        pairs = zip(proto.graph.output, signature.outputs, strict=True)
        rename_tensors(proto.graph, {value.name: spec.name for value, spec in pairs})
        set_shapes(proto.graph, (*signature.inputs, *signature.outputs))
        onnx.save(proto, path)

    def _convert(self, estimator: Any, signature: Signature) -> onnx.ModelProto:
        from skl2onnx import convert_sklearn

        attempts: list[dict[str, bool]] = [{}]
        if hasattr(estimator, "classes_"):
            raw = {"raw_scores": True} if "scores" in {spec.name for spec in signature.outputs} else {}
            attempts = [{"zipmap": False, **raw}, {"zipmap": False}, raw]
        last = id(sklearn_estimator.last_step(estimator))
        inputs = [(spec.name, _type(spec)) for spec in signature.inputs]
        for options in attempts:
            try:
                with warnings.catch_warnings():  # skl2onnx reads deprecated attributes of scikit-learn
                    warnings.simplefilter("ignore", FutureWarning)
                    proto: onnx.ModelProto = convert_sklearn(
                        estimator,
                        name="sklearn",
                        initial_types=inputs,
                        options={last: options} if options else None,
                        target_opset={"": self.opset, "ai.onnx.ml": ML_OPSET},
                    )
                    return proto
            except Exception as error:  # the converters raise many types
                failure = error
                if not isinstance(error, NameError):  # a few converters reject an option that others need
                    break
        line = next(iter(str(failure).strip().splitlines()), "no reason given").rstrip(" .")
        fix = "Use a supported estimator (skl2onnx.supported_converters()), or provide the model as ONNX"
        name = sklearn_estimator.describe(estimator)
        raise StageError(f"skl2onnx cannot convert {name}: {line}. {fix}") from failure


def _type(spec: TensorSpec) -> Any:
    """Return skl2onnx's type of an input. Raises StageError when skl2onnx has no such type."""
    from skl2onnx.common import data_types

    types = {"float32": "Float", "int64": "Int64", "int32": "Int32", "bool": "Boolean", "str": "String"}
    if spec.dtype not in types:
        raise StageError(f"input '{spec.name}' is {spec.dtype}; skl2onnx takes {', '.join(types)}: convert the data")
    return getattr(data_types, f"{types[spec.dtype]}TensorType")([None, *spec.shape[1:]])
