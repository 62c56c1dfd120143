"""Rewrite boosted models as plain sums of trees, which onnxmltools converts to the same function."""

import re
from typing import Any

import numpy as np
import onnx

LINKS: dict[str, tuple[str, Any]] = {
    "binary:logistic": ("Sigmoid", lambda score: np.log(score / (1 - score))),
    "multi:softprob": ("Softmax", np.asarray),
    **dict.fromkeys(("count:poisson", "reg:gamma", "reg:tweedie"), ("Exp", np.log)),
}
"""Of an objective, what follows the weighted sum, and its inverse for the base score; of others, nothing does."""
GRAPH = """<ir_version: 8, opset_import: ["": 15]>
linear (float[N, {features}] {input}) => ({outputs})
<float zero = {{0}}, float one = {{1}}> {{
  gap = IsNaN ({input})
  filled = Where (gap, zero, {input})
  sum = Gemm (filled, weights, bias)
  result = {link} (sum)
  {last}
}}"""
VALUES = "variable = Identity (result)"
PAIR = "other = Sub (one, result) probabilities = Concat <axis: int = 1> (other, result)"
CLASSES = "probabilities = Identity (result)"
LABEL = " label = ArgMax <axis: int = 1, keepdims: int = 0> (probabilities)"


def linear_graph(learner: dict[str, Any], classes: int, name: str) -> onnx.ModelProto:
    """Return the model of a linear `learner` of an XGBoost file; a missing value adds nothing, as there.

    `classes` is 1 for values, and `name` the input's.
    """
    parameters = learner["learner_model_param"]
    features = int(parameters["num_feature"])
    link, inverse = LINKS.get(learner["objective"]["name"], ("Identity", np.asarray))
    weights = np.array(learner["gradient_booster"]["model"]["weights"]).reshape(features + 1, -1)
    base = inverse(float(parameters["base_score"].strip("[]").split(",")[0]))  # XGBoost adds the first to all classes
    last = VALUES if classes == 1 else (PAIR if classes == 2 else CLASSES) + LABEL
    outputs = "float[N, 1] variable" if classes == 1 else f"int64[N] label, float[N, {classes}] probabilities"
    proto = onnx.parser.parse_model(GRAPH.format(features=features, input=name, outputs=outputs, link=link, last=last))
    for key, array in {"weights": weights[:-1], "bias": weights[-1] + base}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), key))
    return proto


NUMBERS = re.compile(r"^(?P<key>\w+)=(?P<values>.*)$", re.MULTILINE)
SIGMOID = re.compile(r"^objective=binary sigmoid:(.*)$", re.MULTILINE)
AVERAGED = re.compile(r"^average_output\n", re.MULTILINE)
PLAIN = re.compile(r"^(\[?objective(?:=|: ))(?:fair|mape)\b", re.MULTILINE)
"""Objectives that onnxmltools does not know, of values as those of a plain regression."""


def values_of(text: str, key: str) -> list[str]:
    """Return what each line `key=...` of a LightGBM file says."""
    return [line["values"] for line in NUMBERS.finditer(text) if line["key"] == key]


def plain_lightgbm(text: str, trees_a_round: int) -> str:
    """Return a LightGBM file with the same predictions for float32 samples.

    Its leaves hold what averaged trees (boosting: rf) are divided by, and the slope of a sigmoid. Its thresholds are
    values that float32 can hold. A float32 value is at most a threshold exactly if it is at most the largest float32
    value up to it. An exporter rounds to the nearest one, which moves samples to the other side of a split where that
    lies above.
    """
    rounds = len(values_of(text, "leaf_value")) // trees_a_round
    sigmoid = SIGMOID.search(text)
    scale = (float(sigmoid[1]) if sigmoid else 1.0) / (rounds if AVERAGED.search(text) else 1)

    def rewritten(line: re.Match[str]) -> str:
        if line["key"] not in ("threshold", "leaf_value"):
            return line[0]
        exact = np.array(line["values"].split(), np.float64)
        if line["key"] == "leaf_value":
            return f"leaf_value={' '.join(repr(float(value)) for value in exact * scale)}"
        nearest = exact.astype(np.float32)
        down = np.where(nearest > exact, np.nextafter(nearest, np.float32(-np.inf)), nearest)
        return f"threshold={' '.join(repr(float(value)) for value in down)}"

    text = SIGMOID.sub("objective=binary sigmoid:1", AVERAGED.sub("", NUMBERS.sub(rewritten, text)))
    text = PLAIN.sub(r"\1regression", text)
    # The text says how many characters each tree has; without that line, LightGBM reads them one after the other.
    return re.sub(r"^tree_sizes=.*\n", "", text, flags=re.MULTILINE)


def plain_xgboost(learner: dict[str, Any], objective: str) -> None:
    """Change the `learner` of an XGBoost file in place: no weights of trees, one tree for each class in a round.

    `objective` is one with the same predictions.
    """
    learner["objective"]["name"] = objective
    booster = learner["gradient_booster"]
    if booster["name"] == "dart":
        for tree, weight in zip(booster["gbtree"]["model"]["trees"], booster["weight_drop"], strict=True):
            values = zip(tree["split_conditions"], tree["left_children"], strict=True)
            tree["split_conditions"] = [value * weight if left < 0 else value for value, left in values]
        booster = learner["gradient_booster"] = booster["gbtree"]
    model = booster["model"]
    classes = model["tree_info"]
    seen: dict[int, int] = {}
    rounds = []
    for group in classes:
        rounds.append(seen.get(group, 0))
        seen[group] = rounds[-1] + 1
    order = sorted(range(len(classes)), key=lambda index: (rounds[index], classes[index]))
    model["trees"] = [model["trees"][index] | {"id": place} for place, index in enumerate(order)]
    model["tree_info"] = [classes[index] for index in order]
    model["iteration_indptr"] = list(range(0, len(order) + 1, len(seen)))
    model["gbtree_model_param"]["num_parallel_tree"] = "1"
