"""skl2onnx: scikit-learn's estimators as ONNX operators, most of them from the domain `ai.onnx.ml`."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.signature import Signature, TensorSpec
from tasks.sources import sklearn as source

if TYPE_CHECKING:
    import onnx

ML_OPSET = 3
"""Of `ai.onnx.ml`; newer ones replace the tree operators, which skl2onnx does not write for every model yet."""


class Skl2Onnx(Frozen):
    """`skl2onnx.convert_sklearn`, without ZipMap: probabilities are an array, not a list of maps."""

    kind: Literal["skl2onnx"] = "skl2onnx"
    opset: int = Field(18, ge=13, le=22, description="ONNX operator set; 22 is the newest that this exporter writes")

    takes: ClassVar[str] = "sklearn"
    packages: ClassVar[dict[str, str]] = {"skl2onnx": "sklearn", "skops": "sklearn"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Convert the estimator saved in `model` to `path`.

        Raises:
            StageError: when skl2onnx cannot convert it, or gives other outputs than the estimator has.
        """
        import onnx

        estimator = source.load(model, None)
        proto = _at_opset(self._convert(estimator, signature), self.opset)
        if len(proto.graph.output) != len(signature.outputs):
            found, wanted = ([t.name for t in ts] for ts in (proto.graph.output, signature.outputs))
            raise StageError(f"skl2onnx gives the outputs {found} for {source.describe(estimator)}, not {wanted}")
        _rename(proto.graph, [spec.name for spec in signature.outputs])
        for values, specs in ((proto.graph.input, signature.inputs), (proto.graph.output, signature.outputs)):
            for value, spec in zip(values, specs, strict=True):
                kind = value.type.tensor_type.elem_type
                value.CopyFrom(onnx.helper.make_tensor_value_info(spec.name, kind, spec.shape))
        onnx.save(proto, path)

    def _convert(self, estimator: Any, signature: Signature) -> "onnx.ModelProto":
        from skl2onnx import convert_sklearn

        attempts: list[dict[str, bool]] = [{}]
        if hasattr(estimator, "classes_"):
            raw = {"raw_scores": True} if "scores" in {spec.name for spec in signature.outputs} else {}
            attempts = [{"zipmap": False, **raw}, {"zipmap": False}, raw]
        last = id(source.last_step(estimator))
        inputs = [(spec.name, _type(spec)) for spec in signature.inputs]
        for options in attempts:
            try:
                with warnings.catch_warnings():  # it looks at attributes that scikit-learn is giving up
                    warnings.simplefilter("ignore", FutureWarning)
                    proto: onnx.ModelProto = convert_sklearn(
                        estimator,
                        name="sklearn",
                        initial_types=inputs,
                        options={last: options} if options else None,
                        target_opset={"": self.opset, "ai.onnx.ml": ML_OPSET},
                    )
            except NameError as error:  # a few converters refuse an option that the others want
                reason = str(error)
            except Exception as error:  # the converters raise what they like
                raise _refusal(estimator, str(error)) from error
            else:
                return proto
        raise _refusal(estimator, reason)


def _refusal(estimator: Any, reason: str) -> StageError:
    line = next(iter(reason.strip().splitlines()), "it does not say why")
    return StageError(
        f"skl2onnx cannot convert {source.describe(estimator)}: {line.rstrip(' .')}. "
        "Take an estimator that it knows (skl2onnx.supported_converters()), or bring the model as ONNX"
    )


def _at_opset(proto: "onnx.ModelProto", opset: int) -> "onnx.ModelProto":
    """Return the model at the operator set that was asked for.

    skl2onnx declares the oldest one that has its operators, at times twice, and none for a forest alone; quantisers and
    optimisers refuse such models.
    """
    import onnx
    from onnx.version_converter import convert_version

    versions = {"": opset} | {entry.domain: entry.version for entry in proto.opset_import}
    del proto.opset_import[:]
    proto.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in versions.items())
    if versions[""] == opset:
        return proto
    try:
        return convert_version(proto, opset)
    except RuntimeError:  # it does not know every operator; the older set is as good for whoever only runs the model
        return proto


def _type(spec: TensorSpec) -> Any:
    """Return skl2onnx's word for an input.

    Raises:
        StageError: when it has none.
    """
    from skl2onnx.common import data_types

    kinds = {
        "float32": data_types.FloatTensorType,
        "int64": data_types.Int64TensorType,
        "int32": data_types.Int32TensorType,
        "bool": data_types.BooleanTensorType,
        "str": data_types.StringTensorType,
    }
    if spec.dtype not in kinds:
        raise StageError(f"input '{spec.name}' is {spec.dtype}; skl2onnx takes {', '.join(kinds)}: convert the data")
    return kinds[spec.dtype]([None, *spec.shape[1:]])


def _rename(graph: "onnx.GraphProto", wanted: list[str]) -> None:
    """Give the graph's outputs their names, wherever they are used."""
    names = {value.name: name for value, name in zip(graph.output, wanted, strict=True)}
    for node in graph.node:
        for places in (node.input, node.output):
            places[:] = [names.get(name, name) for name in places]
    for value in graph.output:
        value.name = names[value.name]
