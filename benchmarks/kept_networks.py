"""Networks of `wrong_passes`, also with a suppression or a label in the graph, and samples with labels for them."""

import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import onnx
import onnxruntime
from onnx import parser
from prediction_agreement import steps_on_own_states

from gauntlet.core.arrays import NamedArrays

sys.path.append(str(Path(__file__).resolve().parent / "wrong_passes"))
import labelled_problems

SCENES = 600
LABEL = '<ir_version: 8, opset_import: ["": 17]> label (float[n, 10] scores) => (int64[n] label)'
LABEL += " { label = ArgMax<axis = 1, keepdims = 0>(scores) }"
CORNERS = """
  boxes_first, scores_first = Split<axis = 1>(all, sizes)
  places = Transpose<perm = [0, 2, 1]>(boxes_first)
  middles, extents = Split<axis = 2>(places)
  reach = Mul(extents, half)
  low = Sub(middles, reach) high = Add(middles, reach)
  boxes = Concat<axis = 2>(low, high)
"""
"""Left, top, right and bottom of the network's boxes, which have a center and a size."""
APART = f"""<ir_version: 8, opset_import: ["": 17]>
apart (float[n, 14, 256] all) => (float[n, 256, 4] boxes, float[n, 256, 10] scores)
<int64[2] sizes = {{4, 10}}, float half = {{0.5}}> {{ {CORNERS} scores = Transpose<perm = [0, 2, 1]>(scores_first) }}"""
SUPPRESSION = f"""<ir_version: 8, opset_import: ["": 17]>
suppression (float[n, 14, 256] all) => (float[n, 50, 6] rows)
<int64[2] sizes = {{4, 10}}, int64[1] most = {{50}}, float[1] max_iou = {{0.5}}, float[1] least = {{0.05}},
 int64[2] flat = {{0, -1}}, int64 cells = {{256}}, int64[1] last = {{2}}, int64[3] four = {{1, 1, 4}},
 float half = {{0.5}}> {{ {CORNERS}
  chosen = NonMaxSuppression(boxes, scores_first, most, max_iou, least)
  every = Shape(scores_first) nothing = ConstantOfShape(every)
  number = Shape<start = 0, end = 1>(chosen)
  ones = ConstantOfShape<value = float[1] {{1}}>(number)
  mask = ScatterND(nothing, chosen, ones) left = Mul(scores_first, mask)
  line = Reshape(left, flat)
  best, found = TopK(line, most)
  class = Div(found, cells) cell = Mod(found, cells)
  column = Unsqueeze(cell, last) columns = Expand(column, four)
  best_boxes = GatherElements<axis = 1>(boxes, columns)
  score = Unsqueeze(best, last)
  class_number = Cast<to = 1>(class) kind = Unsqueeze(class_number, last)
  rows = Concat<axis = 2>(best_boxes, score, kind)
}}"""
"""A suppression with a fixed number of rows: what NonMaxSuppression drops has the score 0."""


class Network(NamedTuple):
    """A network of `wrong_passes`, and the graph that is added behind its output `y`; `keeps_y` beside the added."""

    problem: str
    added: str = ""
    keeps_y: bool = False


NETWORKS = {
    "detection-joined": Network("detection"),
    "detection-apart": Network("detection", APART),
    "detection-suppressed": Network("detection", SUPPRESSION),
    "text": Network("text"),
    "segmentation": Network("segmentation"),
    "classification-int64": Network("classification-hard", LABEL, keeps_y=True),
    "classification-streaming": Network("classification-streaming"),
    "multi-label": Network("multi-label"),
    "embedding": Network("embedding"),
}


def write_model(network: Network, folder: Path, path: Path) -> None:
    """Write the network, with what is added to it."""
    model = onnx.load(folder / network.problem / "model.onnx")
    if network.added:
        tail = parser.parse_model(network.added)
        outputs = [*(["y"] if network.keeps_y else []), *(output.name for output in tail.graph.output)]
        model = onnx.compose.merge_models(model, tail, [("y", tail.graph.input[0].name)], outputs=outputs)
    onnx.save(model, path)


def samples_of(problem: str, original: Path) -> tuple[NamedArrays, NamedArrays, Any]:
    """Return samples that the run sees, those that it does not, and the truth of these; none trained a network."""
    if problem.startswith("detection"):
        few = {"validation_images": 10, "calibration_images": 10, "train_images": 10, "digit_size": (10, 22)}
        scenes = labelled_problems.DigitScenes(**few, image_size=64, max_digits=5, test_images=SCENES).load()
        test: NamedArrays = {"x": scenes.splits["test"].take(slice(None))["input"]}
        truth = [rows[rows[:, 4] >= 0][:, [0, 1, 2, 3, 5, 4]] for rows in scenes.splits["test"].labels]
    else:  # the same samples as `make` has, without training again
        with mock.patch.object(labelled_problems, "fit", lambda network, *_: network.state_dict()):
            problem_data = labelled_problems.PROBLEMS[problem]()
        test, truth = problem_data.test, problem_data.truth
    if "state" not in test:
        middle = len(test["x"]) // 2
        return {"x": test["x"][:middle]}, {"x": test["x"][middle:]}, truth[middle:]
    streams = labelled_problems.STREAMS
    rows, classes = test["x"].reshape(-1, streams, 8), truth.reshape(-1, streams)
    seen, unseen = rows[:, : streams // 2], rows[:, streams // 2 :]
    states = steps_on_own_states(onnxruntime.InferenceSession(original), seen)["state"]
    run = {"x": seen.reshape(-1, 8), "state": states.reshape(-1, states.shape[2])}
    return run, {"x": unseen}, classes[:, streams // 2 :].ravel()
