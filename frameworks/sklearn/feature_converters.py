"""Converters for encoders, scalers and selectors of features, where those of skl2onnx compute something else."""

from typing import Any

import numpy as np

from frameworks.sklearn.graph_nodes import DOUBLE, FLOAT, INT64, Nodes

SELECTORS = """
    GenericUnivariateSelect RFE RFECV SelectFdr SelectFpr SelectFromModel SelectFwe SelectKBest SelectPercentile
    VarianceThreshold
"""


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
    for index, (source, place) in enumerate(sources):
        column = nodes.add("Gather", source.full_name, nodes.constant([place], np.int64), axis=1)
        known, few = encoder.categories_[index], rare[index]
        flags = _flags(nodes, source, column, known if few is None else known[~np.isin(known, few)])
        if few is not None:
            counted = flags if encoder.handle_unknown != "ignore" else _flags(nodes, source, column, few)
            count = nodes.add("ReduceSum", counted, nodes.constant([1], np.int64), keepdims=1)
            last = count if encoder.handle_unknown == "ignore" else nodes.add("Sub", nodes.constant(1), count)
            flags = nodes.add("Concat", flags, last, axis=1)
        if encoder.drop_idx_ is not None and (dropped := encoder._drop_idx_after_grouping[index]) is not None:
            grouped = encoder._compute_transformed_categories(index, remove_dropped=False)
            kept = np.delete(np.arange(len(grouped)), dropped)
            flags = nodes.add("Gather", flags, nodes.constant(kept, np.int64), axis=1)
        encoded.append(flags)
    kind = INT64 if np.issubdtype(encoder.dtype, np.signedinteger) else FLOAT
    nodes.add("Cast", nodes.add("Concat", *encoded, axis=1), output=operator.outputs[0].full_name, to=kind)


def one_hot_shape(operator: Any) -> None:
    """Count an infrequent category once; skl2onnx counts each that it stands for."""
    from skl2onnx.shape_calculators.one_hot_encoder import calculate_sklearn_one_hot_encoder_output_shapes

    calculate_sklearn_one_hot_encoder_output_shapes(operator)
    operator.outputs[0].type.shape[1] = len(operator.raw_operator.get_feature_names_out())


def _flags(nodes: Nodes, source: Any, column: str, categories: Any) -> str:
    """Return which of some categories a column, shape (n, 1), holds: 1 or 0, shape (n, categories)."""
    from skl2onnx.common.data_types import Int32TensorType, Int64TensorType, StringTensorType

    if not len(categories) or not all(each == each for each in categories):  # NaN is not itself
        raise NotImplementedError("a OneHotEncoder with a column of infrequent categories alone, or with NaN as one")
    if isinstance(source.type, StringTensorType):
        names = [str(name).encode() for name in categories]
        flags = nodes.add("OneHotEncoder", column, op_domain="ai.onnx.ml", cats_strings=names, zeros=1)
        return nodes.add("Reshape", flags, nodes.constant([-1, len(names)], np.int64))
    exact = isinstance(source.type, Int64TensorType | Int32TensorType) and categories.dtype.kind != "f"
    row = nodes.constant(np.array(categories)[None], np.int64 if exact else np.float64)
    number = nodes.add("Cast", column, to=INT64 if exact else DOUBLE)
    return nodes.add("Cast", nodes.add("Equal", number, row), to=FLOAT)


def convert_normalizer(scope: Any, operator: Any, container: Any) -> None:
    """Divide by the largest magnitude where ONNX's Normalizer divides by the largest value."""
    from skl2onnx.operator_converters.normaliser import convert_sklearn_normalizer

    if operator.raw_operator.norm != "max":
        convert_sklearn_normalizer(scope, operator, container)
        return
    nodes = Nodes(scope, container)
    values = nodes.add("Cast", nodes.matrix(operator.inputs), to=FLOAT)
    shares = nodes.add("Normalizer", nodes.add("Abs", values), op_domain="ai.onnx.ml", norm="MAX")
    nodes.add("Mul", nodes.add("Sign", values), shares, output=operator.outputs[0].full_name)


def convert_power(scope: Any, operator: Any, container: Any) -> None:
    """Compute in float64, and leave a missing value missing, of which skl2onnx makes the mean."""
    transformer, nodes = operator.raw_operator, Nodes(scope, container)
    zero, one = (nodes.constant(value, np.float64) for value in (0, 1))

    def power(base: str, exponents: Any) -> str:
        linear = np.where(exponents == 0, 1, exponents)
        raised = nodes.add("Sub", nodes.add("Pow", base, nodes.constant(linear, np.float64)), one)
        scaled = nodes.add("Div", raised, nodes.constant(linear, np.float64))
        return nodes.add("Where", nodes.constant(exponents == 0, np.bool_), nodes.add("Log", base), scaled)

    values = nodes.add("Cast", nodes.matrix(operator.inputs), to=DOUBLE)
    if transformer.method == "box-cox":
        result = power(values, transformer.lambdas_)
    else:
        above = power(nodes.add("Add", nodes.add("Max", values, zero), one), transformer.lambdas_)
        below = power(nodes.add("Sub", one, nodes.add("Min", values, zero)), 2 - transformer.lambdas_)
        result = nodes.add("Sub", above, below)
    if transformer.standardize:
        scaler = transformer._scaler
        centered = nodes.add("Sub", result, nodes.constant(scaler.mean_, np.float64))
        result = nodes.add("Div", centered, nodes.constant(scaler.scale_, np.float64))
    nodes.add("Cast", result, output=operator.outputs[0].full_name, to=FLOAT)


def convert_selection(scope: Any, operator: Any, container: Any) -> None:
    """Select the columns, the first alone too, of which skl2onnx makes a constant."""
    nodes, columns = Nodes(scope, container), operator.raw_operator.get_support(indices=True)
    if not len(columns):
        raise NotImplementedError(f"a {type(operator.raw_operator).__name__} that selects nothing")
    chosen = nodes.constant(columns, np.int64)
    nodes.add("Gather", nodes.matrix(operator.inputs), chosen, output=operator.outputs[0].full_name, axis=1)
