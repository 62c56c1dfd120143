"""Converters for encoders, scalers and selectors of features, where those of skl2onnx compute something else."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from frameworks.sklearn.graph_nodes import DOUBLE, FLOAT, INT64, Nodes

SELECTORS = (
    "GenericUnivariateSelect RFE RFECV SelectFdr SelectFpr SelectFromModel SelectFwe SelectKBest SelectPercentile "
    "VarianceThreshold"
)


def convert_one_hot(scope: Any, operator: Any, container: Any) -> None:
    """Encode unknown and infrequent categories as scikit-learn does; skl2onnx's file fails, or truncates numbers."""
    from skl2onnx.operator_converters.one_hot_encoder import convert_sklearn_one_hot_encoder

    encoder, nodes = operator.raw_operator, Nodes(scope, container)
    if encoder.handle_unknown == "error":
        convert_sklearn_one_hot_encoder(scope, operator, container)
        return
    limited = encoder.min_frequency is not None or encoder.max_categories is not None
    rare = encoder.infrequent_categories_ if limited else [None] * len(encoder.categories_)
    sources = [(each, place) for each in operator.inputs for place in range(each.type.shape[1] or len(rare))]
    encoded = []
    for index, ((source, place), known, few) in enumerate(zip(sources, encoder.categories_, rare, strict=True)):
        column = nodes.add("Gather", source.full_name, nodes.constant([place], np.int64), axis=1)
        flags = _flags(nodes, source, column, known if few is None else known[~np.isin(known, few)])
        if few is not None:
            ignores = encoder.handle_unknown == "ignore"
            counted = _flags(nodes, source, column, few) if ignores else flags
            count = nodes.add("ReduceSum", counted, nodes.constant([1], np.int64), keepdims=1)
            flags = nodes.add("Concat", flags, count if ignores else nodes.add("Sub", nodes.constant(1), count), axis=1)
        if encoder.drop_idx_ is not None and (dropped := encoder._drop_idx_after_grouping[index]) is not None:
            kept = np.delete(np.arange(1 + encoder._n_features_outs[index]), dropped)
            flags = nodes.add("Gather", flags, nodes.constant(kept, np.int64), axis=1)
        encoded.append(flags)
    joined, whole = nodes.add("Concat", *encoded, axis=1), np.issubdtype(encoder.dtype, np.signedinteger)
    nodes.add("Cast", joined, output=operator.outputs[0].full_name, to=INT64 if whole else FLOAT)


def one_hot_shape(operator: Any) -> None:
    """Count an infrequent category once; skl2onnx counts each that it stands for."""
    from skl2onnx.shape_calculators.one_hot_encoder import calculate_sklearn_one_hot_encoder_output_shapes

    calculate_sklearn_one_hot_encoder_output_shapes(operator)
    operator.outputs[0].type.shape[1] = len(operator.raw_operator.get_feature_names_out())


def _flags(nodes: Nodes, source: Any, column: str, categories: Any) -> str:
    """Return which of some categories a column, shape (n, 1), holds: 1 or 0, shape (n, categories)."""
    if not len(categories) or not all(each == each for each in categories):  # NaN is not itself
        raise NotImplementedError("a OneHotEncoder with a column of infrequent categories alone, or with NaN as one")
    if "String" in type(source.type).__name__:
        names = [str(name).encode() for name in categories]
        flags = nodes.add("OneHotEncoder", column, op_domain="ai.onnx.ml", cats_strings=names, zeros=1)
        return nodes.add("Reshape", flags, nodes.constant([-1, len(names)], np.int64))
    exact = "Int" in type(source.type).__name__ and categories.dtype.kind != "f"
    row, number = nodes.constant([categories], np.int64 if exact else np.float64), INT64 if exact else DOUBLE
    return nodes.add("Cast", nodes.add("Equal", nodes.add("Cast", column, to=number), row), to=FLOAT)


def convert_normalizer(scope: Any, operator: Any, container: Any) -> None:
    """Divide by the largest magnitude where ONNX's Normalizer divides by the largest value."""
    nodes, norm = Nodes(scope, container), operator.raw_operator.norm.upper()
    values = nodes.add("Cast", nodes.matrix(operator.inputs), to=FLOAT)
    shares = nodes.add("Normalizer", nodes.add("Abs", values), op_domain="ai.onnx.ml", norm=norm)
    nodes.add("Mul", nodes.add("Sign", values), shares, output=operator.outputs[0].full_name)


def convert_power(scope: Any, operator: Any, container: Any) -> None:
    """Leave a missing value missing, of which skl2onnx makes the value of 0."""
    from skl2onnx.operator_converters.power_transformer import convert_powertransformer

    nodes, filled = Nodes(scope, container), str(scope.get_unique_variable_name("filled"))
    parts = {"raw_operator": operator.raw_operator, "inputs": operator.inputs}
    convert_powertransformer(scope, SimpleNamespace(**parts, outputs=[SimpleNamespace(full_name=filled)]), container)
    missing = nodes.add("IsNaN", nodes.add("Cast", nodes.matrix(operator.inputs), to=FLOAT))
    nodes.add("Where", missing, nodes.constant(np.nan), filled, output=operator.outputs[0].full_name)


def convert_selection(scope: Any, operator: Any, container: Any) -> None:
    """Select the columns, the first alone too, of which skl2onnx makes a constant."""
    nodes, columns = Nodes(scope, container), operator.raw_operator.get_support(indices=True)
    if not len(columns):
        raise NotImplementedError(f"a {type(operator.raw_operator).__name__} that selects nothing")
    chosen = nodes.constant(columns, np.int64)
    nodes.add("Gather", nodes.matrix(operator.inputs), chosen, output=operator.outputs[0].full_name, axis=1)
