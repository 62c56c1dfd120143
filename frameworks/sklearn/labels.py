"""Labels of a classifier that are not the class of its highest score: several for a sample, or one by a threshold."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from frameworks.graph_interface import rename_tensors
from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError


def last_step(estimator: Any) -> Any:
    """Return the last step of a pipeline, that of a search's best one, or the estimator itself."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    steps = getattr(estimator, "steps", None)
    return last_step(steps[-1][1]) if steps else estimator


def first_step(estimator: Any) -> Any:
    """Return the first step of a pipeline, of pipelines in it too, or the estimator itself."""
    steps = getattr(estimator, "steps", None)
    return first_step(steps[0][1]) if steps else estimator


def takes_columns(estimator: Any) -> bool:
    """Return whether the first step takes the columns of a table apart; any other one takes a matrix."""
    return any(hasattr(first_step(estimator), name) for name in ("transformers_", "transformer_list"))


def label_count(estimator: Any) -> int:
    """Return how many labels, each 0 or 1, a classifier gives a sample; 0 if it gives it one class.

    Raises StageError for several classes a sample.
    """
    model = last_step(estimator)
    classes = getattr(model, "classes_", ())
    if isinstance(classes, list):
        if any(list(each) != [0, 1] for each in classes):
            raise StageError(
                f"{type(model).__name__} returns several classes for each sample, not only 0 and 1. Fix: use one model "
                "for each"
            )
        return len(classes)
    network = getattr(model, "out_activation_", "") == "logistic" and model.n_outputs_ > 1
    return len(classes) if network or getattr(model, "multilabel_", False) else 0


def probability_of_each(result: Any) -> Array:
    """Return the probability of each label, shape (n, labels), from one array, or an array (n, 2) for each label."""
    return np.stack([each[:, 1] for each in result], axis=1) if isinstance(result, list) else np.asarray(result)


def join_probabilities(graph: onnx.GraphProto, estimator: Any) -> None:
    """Make the second output the probability of each label, shape (n, labels), in place.

    skl2onnx gives a network's as (n, 2 * labels), those of trees and neighbors as (labels, n, 2), and those of a
    MultiOutputClassifier as a sequence of arrays (n, 2).
    """
    count, output = label_count(estimator), graph.output[1]
    model = last_step(estimator)
    name = output.name
    if getattr(model, "multilabel_", False):
        return
    source = f"{name}__both"
    rename_tensors(graph, {name: source})
    producer = next(node for node in graph.node if source in node.output)
    columns, axis = np.arange(count, 2 * count), 1
    if producer.op_type == "SequenceConstruct":
        producer.op_type, columns = "Concat", np.arange(1, 2 * count, 2)
        producer.attribute.append(onnx.helper.make_attribute("axis", 1))
    elif isinstance(model.classes_, list):
        columns, axis = np.array(1), 2
    graph.initializer.append(onnx.numpy_helper.from_array(columns.astype(np.int64), f"{name}__columns"))
    chosen = name if axis == 1 else f"{name}__rows"
    graph.node.append(onnx.helper.make_node("Gather", [source, f"{name}__columns"], [chosen], axis=axis))
    if axis == 2:
        graph.node.append(onnx.helper.make_node("Transpose", [chosen], [name], perm=[1, 0]))
    output.CopyFrom(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))


@dataclass(frozen=True)
class Threshold:
    """The score from which on a TunedThresholdClassifierCV or FixedThresholdClassifier returns a class.

    `positive` is its place among the two classes of the inner estimator.
    """

    estimator: Any
    value: float
    positive: int

    @classmethod
    def of(cls, model: Any) -> "Threshold | None":
        """Return that of a fitted estimator, or None; raise StageError if it is one of scores that are not exported."""
        from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV

        if not isinstance(model, FixedThresholdClassifier | TunedThresholdClassifierCV):
            return None
        inner = getattr(model, "estimator_", model.estimator)
        method = "predict_proba" if hasattr(inner, "predict_proba") else "decision_function"
        if model.response_method not in ("auto", method):
            raise StageError(
                f"a threshold of {model.response_method} is not converted where the classifier has {method}. Fix: fit "
                "it with response_method='auto'"
            )
        if isinstance(model, TunedThresholdClassifierCV):
            value, label = model.best_threshold_, model._curve_scorer._get_pos_label()
        else:
            automatic = 0.5 if method == "predict_proba" else 0.0
            value, label = (automatic if model.threshold == "auto" else model.threshold), model.pos_label
        return cls(inner, float(value), 1 if label is None else list(model.classes_).index(label))

    def apply(self, graph: onnx.GraphProto) -> None:
        """Compute the label, the first output, from the scores, the second, in place."""
        label, scores = (value.name for value in graph.output)
        rename_tensors(graph, {label: f"{label}__highest"})
        graph.output[0].name = label
        classes = np.asarray(self.estimator.classes_)
        texts = classes.dtype.kind in "OU"
        classes = classes.astype(object if texts else np.int64)
        constants = {
            "place": np.array(self.positive),
            "threshold": np.array(self.value, np.float32),
            "positive": classes[self.positive : self.positive + 1],
            "negative": classes[1 - self.positive : 2 - self.positive],
        }
        graph.initializer.extend(onnx.numpy_helper.from_array(a, f"{label}__{key}") for key, a in constants.items())
        steps = (
            ("Gather", (scores, f"{label}__place"), f"{label}__score"),
            ("GreaterOrEqual", (f"{label}__score", f"{label}__threshold"), f"{label}__above"),
            ("Where", (f"{label}__above", f"{label}__positive", f"{label}__negative"), label),
        )
        for kind, inputs, output in steps:
            how: dict[str, Any] = {"axis": 1} if kind == "Gather" else {}
            graph.node.append(onnx.helper.make_node(kind, inputs, [output], **how))
