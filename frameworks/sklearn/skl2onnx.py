"""skl2onnx: export scikit-learn estimators, mostly to operators of the domain `ai.onnx.ml`."""

import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import onnx
from pydantic import Field

from frameworks.graph_interface import at_opset, rename_tensors, set_shapes
from frameworks.sklearn import converters, tokens
from frameworks.sklearn import estimator as sklearn_estimator
from frameworks.sklearn.labels import (
    Threshold,
    first_step,
    join_probabilities,
    label_count,
    last_step,
    takes_columns,
)
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from tasks.export.base import Exporter

ML_OPSET = 3
"""Opset of `ai.onnx.ml`. Newer ones replace the tree operators, which skl2onnx does not yet support for all models."""
DENSE = {("flatten_transform", True): False, ("sparse_output", True): False}
"""Parameters and values that skl2onnx refuses: the value with which it converts what they compute."""


class Skl2Onnx(Exporter):
    """`skl2onnx.convert_sklearn`, without ZipMap: probabilities are an array, not a list of maps."""

    kind: Literal["skl2onnx"] = "skl2onnx"
    opset: int = Field(18, ge=13, le=22, description="ONNX operator set; 22 is the newest that skl2onnx writes")

    framework: ClassVar[str] = "sklearn"
    packages: ClassVar[dict[str, str]] = {"skl2onnx": "sklearn", "skops": "sklearn"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Convert the estimator saved in `model` to `path`. Raises StageError when skl2onnx cannot convert it."""
        estimator = sklearn_estimator.load(model, None)
        _require_marks(estimator)
        _round_thresholds(last_step(estimator))
        for name, value in estimator.get_params().items():
            setting = (name.rpartition("__")[2], value)
            for dense in (dense for key, dense in DENSE.items() if key == setting):
                estimator.set_params(**{name: dense})
            if name.endswith("weights") and isinstance(value, list):  # of a vote; skl2onnx sums an array
                estimator.set_params(**{name: np.array(value)})
        proto = at_opset(self._convert(_with_columns(_with_its_model(estimator), signature), signature), self.opset)
        if [spec.name for spec in signature.outputs] == [sklearn_estimator.LABEL]:
            del proto.graph.output[1:]  # skl2onnx makes up probabilities of classes that are voted for
        if len(proto.graph.output) != len(signature.outputs):
            actual, expected = ([t.name for t in ts] for ts in (proto.graph.output, signature.outputs))
            name = sklearn_estimator.describe(estimator)
            raise StageError(f"skl2onnx gives the outputs {actual} for {name}, not {expected}")
        pairs = zip(proto.graph.output, signature.outputs, strict=True)
        rename_tensors(proto.graph, {value.name: spec.name for value, spec in pairs})
        if len(signature.outputs) > 1 and label_count(estimator):
            join_probabilities(proto.graph, estimator)
        if (threshold := Threshold.of(last_step(estimator))) is not None:
            threshold.apply(proto.graph)
        _reshape_outputs(proto, signature)
        tokens.read_all_scripts(proto.graph, estimator)
        converters.label_by_scores(proto.graph, last_step(estimator))
        set_shapes(proto.graph, (*signature.inputs, *signature.outputs))
        onnx.save(proto, path)

    def _convert(self, estimator: Any, signature: Signature) -> onnx.ModelProto:
        from skl2onnx import convert_sklearn

        converters.register()
        attempts: list[dict[str, bool]] = [{}]
        if hasattr(estimator, "classes_"):
            raw = {"raw_scores": True} if "scores" in {spec.name for spec in signature.outputs} else {}
            attempts = [{"zipmap": False, **raw}, {"zipmap": False}, raw]
        last = id(last_step(estimator))
        # skl2onnx takes a selector by a classifier for a classifier, if it has no options of its own.
        selectors: dict[int, dict[str, bool]] = {id(step): {} for _, step in getattr(estimator, "steps", ())[:-1]}
        converted = _converted_inputs(estimator, signature)
        is_table = len(signature.inputs) > 1 or hasattr(first_step(estimator), "transformers_")
        columns = {spec.name for spec in signature.inputs if is_table and len(spec.shape) == 1}
        inputs = [
            (spec.name, _type(spec, as_float=spec.name in converted, is_column=spec.name in columns))
            for spec in signature.inputs
        ]
        for options in attempts:
            try:
                with warnings.catch_warnings(), converters.mended():
                    warnings.simplefilter("ignore", FutureWarning)  # about attributes that skl2onnx reads
                    proto: onnx.ModelProto = convert_sklearn(
                        estimator,
                        name="sklearn",
                        initial_types=inputs,
                        options=({last: options} if options else {}) | selectors,
                        target_opset={"": self.opset, "ai.onnx.ml": ML_OPSET},
                    )
                    pairs = zip(proto.graph.input, inputs, strict=True)  # skl2onnx writes underscores for spaces
                    rename_tensors(proto.graph, {value.name: name for value, (name, _) in pairs})
                    return _with_conversions(proto, converted, columns)
            except Exception as error:  # the converters raise many types
                failure = error
                if not isinstance(error, NameError):  # a few converters reject an option that others need
                    break
        line = next(iter(str(failure).strip().splitlines()), "no reason given").rstrip(" .")
        fix = "Fix: use a supported estimator (skl2onnx.supported_converters()), or provide the model as ONNX"
        if type(last_step(estimator)).__module__.startswith(("lightgbm.", "xgboost.")):
            fix = "Fix: save the booster itself, with its save_model, and bring that file"
        name = sklearn_estimator.describe(estimator)
        raise StageError(f"skl2onnx cannot convert {name}: {line}. {fix}") from failure


def _require_marks(estimator: Any) -> None:
    """Raise StageError for an imputer whose columns that mark missing values skl2onnx leaves out."""
    from sklearn.impute import SimpleImputer

    parts = estimator.get_params()
    for name, value in parts.items():
        owner = parts.get(name.rpartition("__")[0], estimator)
        if name.endswith("add_indicator") and value and not isinstance(owner, SimpleImputer):
            raise StageError(
                f"skl2onnx leaves out the columns that mark missing values ({name}=True). Fix: fit it without "
                "add_indicator, or with a SimpleImputer"
            )


def _with_its_model(estimator: Any) -> Any:
    """Return an estimator that selects features and predicts from them as two steps: skl2onnx converts the first only.

    Of a search, return its best estimator, of a classifier with a threshold the inner one. Raises StageError for
    trees with categories, and neighbors in a radius, whose graph ONNX Runtime refuses for samples that some lack.
    """
    from sklearn.feature_selection import RFE
    from sklearn.neighbors import RadiusNeighborsClassifier, RadiusNeighborsRegressor
    from sklearn.pipeline import Pipeline

    steps = getattr(estimator, "steps", None) or [("model", estimator)]
    last = steps[-1][1]
    if hasattr(last, "best_estimator_") or hasattr(last, "steps"):
        return Pipeline([*steps[:-1], ("model", _with_its_model(getattr(last, "best_estimator_", last)))])
    if (threshold := Threshold.of(last)) is not None:
        return Pipeline([*steps[:-1], ("model", threshold.estimator)])
    if np.any(getattr(last, "is_categorical_", None)):
        raise StageError(
            f"skl2onnx takes the categories of a {type(last).__name__} for numbers, which changes predictions. Fix: "
            "encode them before it, and fit it without categorical_features"
        )
    if isinstance(last, RadiusNeighborsClassifier | RadiusNeighborsRegressor):
        raise StageError(
            f"skl2onnx looks up neighbors outside the radius of a {type(last).__name__} at -1, which ONNX Runtime "
            "refuses. Fix: use KNeighborsClassifier or KNeighborsRegressor"
        )
    return Pipeline([*steps, ("estimator", last.estimator_)]) if isinstance(last, RFE) else estimator


def _with_columns(estimator: Any, signature: Signature) -> Any:
    """Return an estimator whose first step takes the inputs: a matrix by the places of its columns, or all at once."""
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    first, several = first_step(estimator), len(signature.inputs) > 1
    if not several and hasattr(first, "transformers_"):
        places = first._transformer_to_input_indices
        first.transformers_ = [(name, part, list(places[name])) for name, part, _ in first.transformers_]
    if several and not takes_columns(estimator) and all(spec.dtype != "str" for spec in signature.inputs):
        return Pipeline([("matrix", FunctionTransformer()), *getattr(estimator, "steps", (("model", estimator),))])
    return estimator


def _reshape_outputs(proto: onnx.ModelProto, signature: Signature) -> None:
    """Give outputs the number of axes that scikit-learn's have, in place; and texts a locale that every system has."""
    graph = proto.graph
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")  # skl2onnx's is not always what its nodes compute
    inferred = onnx.shape_inference.infer_shapes(proto).graph.output
    shapes = {v.name: v.type.tensor_type.shape.dim for v in inferred if v.type.tensor_type.HasField("shape")}
    shaped = {name for node in graph.node if not node.op_type.endswith("Classifier") for name in node.output}
    for spec in signature.outputs:
        is_one_number = spec.name in shaped and spec.shape[1:] in ((), (1,))
        if len(shapes[spec.name]) != len(spec.shape) if spec.name in shapes else is_one_number:
            rename_tensors(graph, {spec.name: f"{spec.name}__flat"})
            next(value for value in graph.output if value.name == f"{spec.name}__flat").name = spec.name
            shape = onnx.numpy_helper.from_array(np.array([-1, *spec.shape[1:]], np.int64), f"{spec.name}__shape")
            graph.initializer.append(shape)
            graph.node.append(onnx.helper.make_node("Reshape", [f"{spec.name}__flat", shape.name], [spec.name]))
    for node in graph.node:
        if node.op_type == "StringNormalizer" and not any(a.name == "locale" for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("locale", "C.UTF-8"))


def _trees(model: Any) -> list[Any]:
    """Return the trees of a tree or of a forest, and none of other models."""
    estimators = getattr(model, "estimators_", [model])
    flat = estimators.ravel() if isinstance(estimators, np.ndarray) else estimators
    return [each.tree_ for each in flat if hasattr(each, "tree_")]


def _round_thresholds(model: Any) -> None:
    """Round thresholds of trees down to float32, in place; scikit-learn's trees take float32 samples.

    Of trees with several labels, skl2onnx rounds them to the nearest value, which may lie beyond a sample.
    """
    for tree in _trees(model):
        nearest = tree.threshold.astype(np.float32)
        tree.threshold[:] = np.where(nearest > tree.threshold, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def _converted_inputs(estimator: Any, signature: Signature) -> dict[str, str]:
    """Return the columns, name -> type, that scikit-learn converts to floats because a step takes them beside floats.

    skl2onnx refuses such a step, or gives all its columns the type of the first, which truncates floats. Booleans are
    always converted: its encoders take none.
    """
    types = {spec.name: spec.dtype for spec in signature.inputs if spec.dtype != "str"}
    booleans = {name: dtype for name, dtype in types.items() if dtype == "bool"}
    if len(set(types.values())) < 2:
        return booleans
    first = first_step(estimator)
    names = [spec.name for spec in signature.inputs]
    groups = [_column_names(columns, names) for _, _, columns in getattr(first, "transformers_", [("", "", names)])]
    mixed = [name for group in groups if len({types[n] for n in group if n in types}) > 1 for name in group]
    return booleans | {name: types[name] for name in mixed if types.get(name, "float32") != "float32"}


def _column_names(columns: Any, names: list[str]) -> list[str]:
    """Return the names of a ColumnTransformer's columns, which are names, or else an index of `names`."""
    if isinstance(columns, slice):
        return names[columns]
    chosen = np.atleast_1d(columns)
    return [str(column) for column in (chosen if chosen.dtype.kind in "OU" else np.array(names)[chosen])]


def _with_conversions(proto: onnx.ModelProto, types: dict[str, str], columns: set[str]) -> onnx.ModelProto:
    """Let float inputs take these types, name -> type, and these columns the shape (n,), in place."""
    graph = proto.graph
    rename_tensors(graph, {name: f"{name}__converted" for name in {*types, *columns}})
    if columns:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 1]), "shape__converted"))
    for value in graph.input:
        name = value.name.removesuffix("__converted")
        nodes = []
        if name in columns:
            output = f"{name}__column" if name in types else value.name
            nodes = [onnx.helper.make_node("Reshape", [name, "shape__converted"], [output])]
        if name in types:
            source = nodes[0].output[0] if nodes else name
            nodes += [onnx.helper.make_node("Cast", [source], [value.name], to=onnx.TensorProto.FLOAT)]
            value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(types[name]))
        value.name = name
        for node in reversed(nodes):
            graph.node.insert(0, node)
    return proto


def _type(spec: TensorSpec, *, as_float: bool, is_column: bool) -> Any:
    """Return skl2onnx's type of an input. Raises StageError when skl2onnx has no such type."""
    from skl2onnx.common import data_types

    types = {"float32": "Float", "int64": "Int64", "int32": "Int32", "bool": "Boolean", "str": "String"}
    if spec.dtype not in types:
        raise StageError(f"input '{spec.name}' is {spec.dtype}; skl2onnx takes {', '.join(types)}: convert the data")
    name = "Float" if as_float else types[spec.dtype]
    return getattr(data_types, f"{name}TensorType")([None, *([1] if is_column else spec.shape[1:])])
