"""The graph of XGBoost's linear model (booster: gblinear), which onnxmltools does not convert."""

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
    text = GRAPH.format(features=features, input=name, outputs=outputs, link=link, last=last)
    proto = onnx.parser.parse_model(text)
    for key, array in {"weights": weights[:-1], "bias": weights[-1] + base}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), key))
    return proto
