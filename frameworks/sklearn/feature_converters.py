"""Converters for encoders, scalers and selectors of features, where those of skl2onnx compute something else."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from frameworks.sklearn.graph_nodes import BOOL, DOUBLE, FLOAT, INT64, Nodes

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

    nodes = Nodes(scope, container)
    filled = _converted(convert_powertransformer, scope, operator, container)
    missing = nodes.add("IsNaN", nodes.add("Cast", nodes.matrix(operator.inputs), to=FLOAT))
    nodes.add("Where", missing, nodes.constant(np.nan), filled, output=operator.outputs[0].full_name)


def convert_max_abs(scope: Any, operator: Any, container: Any) -> None:
    """Clip to 1 where the scaler does, which skl2onnx leaves out."""
    from skl2onnx.operator_converters.scaler_op import convert_sklearn_scaler

    nodes, ends = Nodes(scope, container), (-1, 1) if operator.raw_operator.clip else ()
    scaled = _converted(convert_sklearn_scaler, scope, operator, container)
    limits = [nodes.constant(end) for end in ends]
    nodes.add("Clip", scaled, *limits, output=operator.outputs[0].full_name)


def convert_boosted_values(scope: Any, operator: Any, container: Any) -> None:
    """Return values, of which skl2onnx's are the logarithms where the loss is that of counts or of a gamma."""
    from skl2onnx.operator_converters.random_forest import convert_sklearn_random_forest_regressor_converter as convert

    kind = "Exp" if operator.raw_operator.loss in ("poisson", "gamma") else "Identity"
    sums = _converted(convert, scope, operator, container)
    Nodes(scope, container).add(kind, sums, output=operator.outputs[0].full_name)


def convert_bins(scope: Any, operator: Any, container: Any) -> None:
    """Round edges up: a float32 value is at least an edge exactly if it is at least the next float32 value."""
    from skl2onnx.operator_converters.k_bins_discretiser import convert_sklearn_k_bins_discretiser

    bins = operator.raw_operator
    bins.encode = "onehot-dense" if bins.encode == "onehot" else bins.encode
    for place, edges in enumerate(bins.bin_edges_):
        near = edges.astype(np.float32)
        bins.bin_edges_[place] = np.where(near < edges, np.nextafter(near, np.float32(np.inf)), near)
    convert_sklearn_k_bins_discretiser(scope, operator, container)


def _converted(convert: Any, scope: Any, operator: Any, container: Any, inputs: Any = None) -> str:
    """Let skl2onnx convert an operator, by default with its own inputs; return the name of its output."""
    inputs, output = inputs or operator.inputs, scope.declare_local_variable("converted", operator.outputs[0].type)
    parts = {"raw_operator": operator.raw_operator, "inputs": inputs, "type": operator.type}
    names = [variable.full_name for variable in inputs]
    convert(scope, SimpleNamespace(**parts, input_full_names=names, outputs=[output]), container)
    return str(output.full_name)


def convert_knn_imputer(scope: Any, operator: Any, container: Any) -> None:
    """Fill a sample without any value with the fit's means, of which skl2onnx's graph ends ONNX Runtime's call."""
    from skl2onnx.common.data_types import FloatTensorType
    from skl2onnx.operator_converters.nearest_neighbours import convert_knn_imputer

    nodes, imputer = Nodes(scope, container), operator.raw_operator
    values = nodes.add("Cast", nodes.matrix(operator.inputs), to=FLOAT)
    gaps = nodes.add("Cast", nodes.add("IsNaN", values), to=FLOAT)
    empty = nodes.add("Cast", nodes.add("ReduceMin", gaps, nodes.constant([1], np.int64), keepdims=1), to=BOOL)
    known = scope.declare_local_variable("known", FloatTensorType([None, imputer.n_features_in_]))
    nodes.add("Where", empty, nodes.constant(0), values, output=known.full_name)
    filled = _converted(convert_knn_imputer, scope, operator, container, [known])
    means = np.ma.array(imputer._fit_X, mask=imputer._mask_fit_X).mean(0).filled(0)[imputer._valid_mask]
    nodes.add("Where", empty, nodes.constant([means]), filled, output=operator.outputs[0].full_name)


def convert_mixture(scope: Any, operator: Any, container: Any) -> None:
    """Compute in float64, as scikit-learn does: far from the fit, skl2onnx's float32 decides by its last digits."""
    from skl2onnx.common.data_types import DoubleTensorType, Int64TensorType
    from skl2onnx.operator_converters.gaussian_mixture import convert_sklearn_gaussian_mixture

    nodes, model = Nodes(scope, container), operator.raw_operator
    wide = scope.declare_local_variable("wide", DoubleTensorType([None, model.n_features_in_]))
    nodes.add("Cast", nodes.matrix(operator.inputs), output=wide.full_name, to=DOUBLE)
    results = [scope.declare_local_variable("result", kind()) for kind in (Int64TensorType, DoubleTensorType)]
    parts = {"raw_operator": model, "inputs": [wide], "outputs": results, "target_opset": container.target_opset}
    convert_sklearn_gaussian_mixture(scope, SimpleNamespace(**parts), container)
    for result, output, kind in zip(results, operator.outputs, (INT64, FLOAT), strict=True):
        nodes.add("Cast", result.full_name, output=output.full_name, to=kind)


def convert_selection(scope: Any, operator: Any, container: Any) -> None:
    """Select the columns, the first alone too, of which skl2onnx makes a constant."""
    nodes, columns = Nodes(scope, container), operator.raw_operator.get_support(indices=True)
    if not len(columns):
        raise NotImplementedError(f"a {type(operator.raw_operator).__name__} that selects nothing")
    chosen = nodes.constant(columns, np.int64)
    nodes.add("Gather", nodes.matrix(operator.inputs), chosen, output=operator.outputs[0].full_name, axis=1)
