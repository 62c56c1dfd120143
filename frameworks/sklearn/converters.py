"""Converters for what skl2onnx leaves out, or converts to another function."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import onnx

from frameworks.sklearn import feature_converters as features
from frameworks.sklearn.graph_nodes import FLOAT, INT64, Nodes

MISSING = "nodes_missing_value_tracks_true"


def register() -> None:
    """Register the converters with skl2onnx."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common._registration import get_shape_calculator
    from sklearn import feature_selection, preprocessing
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.impute import KNNImputer, SimpleImputer
    from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

    def replace(model: type, convert: Any, shape: Any = None, **more: Any) -> None:
        alias = f"Sklearn{model.__name__}"
        update_registered_converter(model, alias, shape or get_shape_calculator(alias), convert, **more)

    replace(preprocessing.FunctionTransformer, _convert_function, _function_shape)
    replace(preprocessing.OneHotEncoder, features.convert_one_hot, features.one_hot_shape)
    replace(preprocessing.Normalizer, features.convert_normalizer)
    replace(preprocessing.PowerTransformer, features.convert_power)
    replace(preprocessing.KBinsDiscretizer, features.convert_bins)
    replace(preprocessing.MaxAbsScaler, features.convert_max_abs, options={"div": ["std", "div", "div_cast"]})
    replace(HistGradientBoostingRegressor, features.convert_boosted_values)
    replace(KNNImputer, features.convert_knn_imputer)
    for mixture in (GaussianMixture, BayesianGaussianMixture):
        replace(mixture, features.convert_mixture, options={"score_samples": [True, False]})
    for selector in features.SELECTORS.split():
        replace(getattr(feature_selection, selector), features.convert_selection)
    replace(SimpleImputer, _convert_imputer, _imputer_shape)
    replace(TfidfTransformer, _convert_tfidf, options={"nan": [True, False]})
    replace(TransformedTargetRegressor, _convert_target, _target_shape, parser=_parse_target)


def _convert_function(scope: Any, operator: Any, container: Any) -> None:
    transformer, nodes = operator.raw_operator, Nodes(scope, container)
    if transformer.kw_args:
        raise NotImplementedError(f"a FunctionTransformer with kw_args={transformer.kw_args}")
    nodes.function(transformer.func, nodes.matrix(operator.inputs), operator.outputs[0].full_name)


def _function_shape(operator: Any) -> None:
    from skl2onnx.common.data_types import FloatTensorType

    first = operator.inputs[0].type
    widths = [variable.type.shape[1] for variable in operator.inputs]
    shape = [operator.inputs[0].get_first_dimension(), None if None in widths else sum(widths)]
    kind = type(first) if operator.raw_operator.func is None else FloatTensorType
    operator.outputs[0].type = kind(shape)


def _convert_imputer(scope: Any, operator: Any, container: Any) -> None:
    """Append the columns that mark missing values to those that skl2onnx fills; a missing text has no characters."""
    from skl2onnx.common.data_types import StringTensorType
    from skl2onnx.operator_converters.imputer_op import convert_sklearn_imputer

    imputer, nodes = operator.raw_operator, Nodes(scope, container)
    if isinstance(operator.inputs[0].type, StringTensorType) and not isinstance(imputer.missing_values, str):
        operator.raw_operator = copy.copy(imputer)
        operator.raw_operator.missing_values = ""
    if not imputer.add_indicator:
        convert_sklearn_imputer(scope, operator, container)
        return
    if not (isinstance(imputer.missing_values, float) and np.isnan(imputer.missing_values)):
        raise NotImplementedError(f"add_indicator with missing_values={imputer.missing_values!r}")
    filling = scope.declare_local_operator("SklearnSimpleImputer", copy.copy(imputer))
    filling.raw_operator.add_indicator = False
    filling.inputs = operator.inputs
    filled = scope.declare_local_variable("filled", type(operator.outputs[0].type)())
    filling.outputs.append(filled)
    columns = nodes.constant(imputer.indicator_.features_, np.int64)
    marked = nodes.add("IsNaN", nodes.add("Gather", nodes.matrix(operator.inputs), columns, axis=1))
    marks = nodes.add("Cast", marked, to=FLOAT)
    nodes.add("Concat", filled.full_name, marks, output=operator.outputs[0].full_name, axis=1)


def _imputer_shape(operator: Any) -> None:
    from skl2onnx.shape_calculators.imputer import calculate_sklearn_imputer_output_shapes

    calculate_sklearn_imputer_output_shapes(operator)
    shape, imputer = operator.outputs[0].type.shape, operator.raw_operator
    if imputer.add_indicator and shape[1] is not None:
        shape[1] += len(imputer.indicator_.features_)


def _convert_tfidf(scope: Any, operator: Any, container: Any) -> None:
    """Compute 1 + log(count) where skl2onnx computes log(1 + count): a word that does not occur stays 0."""
    from skl2onnx.operator_converters.tfidf_transformer import convert_sklearn_tfidf_transformer

    if not operator.raw_operator.sublinear_tf:
        convert_sklearn_tfidf_transformer(scope, operator, container)
        return
    counts, nodes = operator.inputs[0], Nodes(scope, container)
    logs = nodes.add("Add", nodes.add("Log", counts.full_name), nodes.constant(1))
    damped = scope.declare_local_variable("damped", counts.type)
    nodes.add("Max", logs, nodes.constant(0), output=damped.full_name)
    weighing = scope.declare_local_operator("SklearnTfidfTransformer", copy.copy(operator.raw_operator))
    weighing.raw_operator.sublinear_tf = False
    weighing.inputs.append(damped)
    weighted = scope.declare_local_variable("weighted", operator.outputs[0].type)
    weighing.outputs.append(weighted)
    nodes.add("Identity", weighted.full_name, output=operator.outputs[0].full_name)


def _parse_target(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Let the inner regressor's values be the input of the inverse transformation."""
    from skl2onnx._parse import parse_sklearn
    from skl2onnx.common.data_types import FloatTensorType

    operator = scope.declare_local_operator("SklearnTransformedTargetRegressor", model)
    operator.inputs = parse_sklearn(scope, model.regressor_, inputs, custom_parsers=custom_parsers)
    for values in operator.inputs:
        values.init_status(is_leaf=False)
    operator.outputs.append(scope.declare_local_variable("variable", FloatTensorType()))
    return operator.outputs


def _target_shape(operator: Any) -> None:
    operator.outputs[0].type.shape = list(operator.inputs[0].type.shape)


def _convert_target(scope: Any, operator: Any, container: Any) -> None:
    """Invert the transformation of the target: a function of NumPy, or a scaler, which multiplies and adds."""
    from sklearn import preprocessing

    transformer, nodes = operator.raw_operator.transformer_, Nodes(scope, container)
    source, output = operator.inputs[0].full_name, operator.outputs[0].full_name
    scalers = (
        *(preprocessing.StandardScaler, preprocessing.MinMaxScaler),
        *(preprocessing.MaxAbsScaler, preprocessing.RobustScaler),
    )
    if isinstance(transformer, preprocessing.FunctionTransformer) and not transformer.inv_kw_args:
        nodes.function(transformer.inverse_func, source, output)
        return
    if not isinstance(transformer, scalers):
        raise NotImplementedError(f"the inverse of a {type(transformer).__name__}")
    width = operator.inputs[0].type.shape[1] or 1
    offset = transformer.inverse_transform(np.zeros((1, width)))
    slope = transformer.inverse_transform(np.ones((1, width))) - offset
    nodes.add("Add", nodes.add("Mul", source, nodes.constant(slope)), nodes.constant(offset), output=output)


def _interpolate(scope: Any, container: Any, model: Any, score: str, k: int, *_: Any) -> str:
    """Interpolate an isotonic calibration, of which skl2onnx returns the value of the nearest threshold."""
    nodes, curve = Nodes(scope, container), model.calibrators[k]
    x, y = curve.X_thresholds_, curve.y_thresholds_
    slopes = np.append(np.diff(y) / np.diff(x), 0)
    column = nodes.add("Reshape", score, nodes.constant([-1, 1], np.int64))
    inside = nodes.add("Clip", column, nodes.constant(x[0]), nodes.constant(x[-1]))
    passed = nodes.add("Not", nodes.add("Less", inside, nodes.constant(np.append(x[1:], np.inf))))
    count = nodes.add("ReduceSum", nodes.add("Cast", passed, to=FLOAT), nodes.constant([1], np.int64), keepdims=1)
    place = nodes.add("Cast", count, to=INT64)
    left, bottom, slope = (nodes.add("Gather", nodes.constant(each), place) for each in (x, y, slopes))
    return nodes.add("Add", bottom, nodes.add("Mul", nodes.add("Sub", inside, left), slope))


def _add_tree(add: Any, pairs: Any, is_classifier: bool, tree: Any, *words: Any, **more: Any) -> None:
    """Send missing values where a tree does, by integers: skl2onnx sends them to the right, or writes booleans."""
    add(pairs, is_classifier, tree, *words, **more)
    to_left = tree.nodes["missing_go_to_left"] if hasattr(tree, "nodes") else tree.missing_go_to_left
    pairs[MISSING][-len(to_left) :] = to_left.tolist()


def _tree_of_labels(populate: Any, model: Any, *words: Any) -> Any:
    return populate(model, *words) | {MISSING: model.tree_.missing_go_to_left.tolist()}


def _largest(values: Any, least: Any, **more: Any) -> Any:
    """Return distances, but at least so much: skl2onnx has their negatives here, which all get the same weight."""
    from skl2onnx.algebra.onnx_ops import OnnxAbs, OnnxMax

    return OnnxMax(OnnxAbs(values, **more), least, **more)


@contextmanager
def mended() -> Iterator[None]:
    """Let skl2onnx interpolate a calibration, follow missing values through trees, and see distances and discriminants.

    A linear discriminant analysis is a logistic regression, of whose two scores skl2onnx takes a softmax.
    """
    from skl2onnx import operator_converters as theirs
    from skl2onnx.common import tree_ensemble
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression

    labels, add = "populate_tree_attributes", "add_tree_to_attribute_pairs"
    mends: list[tuple[Any, str, Any]] = [(theirs.calibrated_classifier_cv, "_transform_isotonic", _interpolate)]
    mends += [(theirs.linear_classifier, "LogisticRegression", (LogisticRegression, LinearDiscriminantAnalysis))]
    mends += [(theirs.nearest_neighbours, "OnnxMax", _largest)]
    mends += [(theirs.decision_tree, labels, partial(_tree_of_labels, getattr(theirs.decision_tree, labels)))]
    for module in (theirs.decision_tree, theirs.gradient_boosting, theirs.isolation_forest, theirs.random_forest):
        names = [name for name in (add, f"{add}_hist_gradient_boosting") if hasattr(module, name)]
        mends += [(module, name, partial(_add_tree, getattr(tree_ensemble, name))) for name in names]
    originals = [(module, name, getattr(module, name)) for module, name, _ in mends]
    for each in mends:
        setattr(*each)
    try:
        yield
    finally:
        for each in originals:
            setattr(*each)


def label_by_scores(graph: onnx.GraphProto, model: Any) -> None:
    """Let the label of one class against the rest follow the scores, as scikit-learn's does, in place.

    skl2onnx takes the highest probability, and float32 has 1 for every score above 17.
    """
    makers = {name: node for node in graph.node for name in node.output}
    attributes = [a for node in graph.node if node.op_type == "LinearClassifier" for a in node.attribute]
    logistic = [a for a in attributes if (a.name, a.s) == ("post_transform", b"LOGISTIC")]
    for label in [node for node in graph.node if node.op_type == "ArgMax"]:
        name, kind = label.input[0], type(model).__name__
        readers = [node for node in graph.node if name in node.input and node is not label]
        if kind == "SGDClassifier" and model.loss in ("log_loss", "modified_huber") and len(model.classes_) > 2:
            parts = "Add", "MatMul"
            while name in makers and (makers[name].op_type, makers.get(makers[name].input[0], label).op_type) != parts:
                name = makers[name].input[0]
            label.input[0] = name if name in makers else label.input[0]
        elif kind == "OneVsRestClassifier" and len(logistic) == len(makers[name].input) and len(readers) == 1:
            for attribute in logistic:
                attribute.s = b"NONE"
            readers[0].input[0] = f"{name}__probabilities"
            sigmoid = onnx.helper.make_node("Sigmoid", [name], [readers[0].input[0]])
            graph.node.insert([*graph.node].index(readers[0]), sigmoid)
