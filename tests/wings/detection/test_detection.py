"""Boxes are read, scored, compared and drawn; a candidate that moves them fails the gate."""

from collections.abc import Callable

import numpy as np
import pytest
from random_boxes import CLASSES, apart, imperfect, objects, truth_of

from gauntlet.core.errors import StageError
from gauntlet.core.signature import BoxDecoding, Preprocessing, Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.problems import problem_of
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy
from gauntlet.problems.base import LOST_SHARE
from tasks.evaluate import EvaluateConfig, evaluate
from wings.detection.detection import Box, BoxesPrediction, Detection

SIZE = 96
LABELS = ("ant", "bee", "cat")
HOW = Preprocessing(height=SIZE, width=SIZE, scale=1 / 255, mean=(0.5,) * 3, std=(0.5,) * 3)
DECODING = BoxDecoding(kind="fcos", scores="scores", boxes="distances")


def detection(how: Preprocessing | None = HOW, decode: BoxDecoding | None = DECODING) -> Detection:
    cells = (CLASSES, SIZE // 4, SIZE // 4)
    outputs = (
        TensorSpec(name="scores", dtype="float32", shape=("batch", *cells)),
        TensorSpec(name="distances", dtype="float32", shape=("batch", 4, *cells[1:])),
    )
    image = TensorSpec(name="input", dtype="float32", shape=("batch", 3, SIZE, SIZE))
    found = problem_of(
        Signature(
            task="detection",
            inputs=(image,),
            outputs=outputs,
            primary_output="scores",
            decode=decode,
            preprocessing=how,
            labels=LABELS,
        )
    )
    assert isinstance(found, Detection)
    return found


def encode(boxes: np.ndarray, shift: float = 0.0) -> dict[str, np.ndarray]:
    """Return outputs that say these boxes, shape (n, k, 6), each in the cell of its center, moved by some pixels."""
    cells = SIZE // 4
    scores = np.full((len(boxes), CLASSES, cells, cells), -8, np.float32)
    distances = np.zeros((len(boxes), 4, cells, cells), np.float32)
    for image, rows in enumerate(boxes):
        for left, top, right, bottom, label, score in rows[rows[:, 4] >= 0]:
            column, row = (int(np.clip(v / 4, 0, cells - 1)) for v in ((left + right) / 2, (top + bottom) / 2))
            x, y = 4 * column + 2, 4 * row + 2
            edges = np.array([x - left - shift, y - top, right - x + shift, bottom - y])
            scores[image, int(label), row, column] = np.log(score / (1 - score))
            distances[image, :, row, column] = np.log(np.maximum(edges, 0.1) / 4)
    return {"scores": scores, "distances": distances}


def test_outputs_are_scored_as_the_boxes_that_they_say() -> None:
    boxes = apart(np.random.default_rng(0), 20)
    predictions = detection().predictions_of(encode(boxes))
    assert predictions is not None
    assert detection().score(predictions, truth_of(boxes)) == {"map": pytest.approx(1), "map_50": pytest.approx(1)}


def test_loss_is_zero_against_itself_and_proven_for_moved_boxes() -> None:
    rng = np.random.default_rng(1)
    truth = objects(rng, 150)
    before, worse = imperfect(truth, rng, noise=1.0), imperfect(truth, rng, noise=4.0)
    same = detection().loss(before, before, truth)
    assert (same.drop, same.low, same.high, same.verdict(0.01)) == (0, 0, 0, "proven good")
    loss = detection().loss(before, worse, truth)
    assert loss.before == pytest.approx(detection().score(before, truth)["map"])
    assert loss.after == pytest.approx(detection().score(worse, truth)["map"])
    assert loss.low <= loss.drop <= loss.high
    assert loss.verdict(0.05) == "proven bad"


def test_small_loss_of_few_images_is_not_resolved() -> None:
    rng = np.random.default_rng(2)
    truth = objects(rng, 20)
    before = imperfect(truth, rng, noise=2.0)
    after = before.copy()
    after[:, :, :4] += rng.normal(scale=1.0, size=after[:, :, :4].shape)
    loss = detection().loss(before, after, truth)
    assert loss.verdict(loss.drop) == "not resolved"


@pytest.mark.parametrize("labelled", [True, False])
def test_gate_passes_the_same_boxes_and_fails_moved_ones(labelled: bool) -> None:
    boxes = apart(np.random.default_rng(3), 60)
    reference = encode(boxes)
    golden = Golden({}, reference, truth_of(boxes) if labelled else None)
    limits = AccuracyLimits(min_sqnr_db=-100)
    for shift, passes in ((0.0, True), (9.0, False)):
        comparison = compare_accuracy(golden, detection().signature, encode(boxes, shift))
        assert comparison.metric == "map"
        assert any(check.blocks for check in accuracy_checks(limits, comparison)) != passes
    assert set(comparison.scores) == ({"map", "map_50"} if labelled else set())


def test_one_lost_class_fails_whatever_it_is_worth_to_the_metric() -> None:
    boxes = apart(np.random.default_rng(6), 60)
    rare = boxes[:, :, 4] == 2
    golden, broken = Golden({}, encode(boxes), truth_of(boxes)), boxes.copy()
    broken[rare & (np.cumsum(rare, axis=1) == 1), 5] = 0.05  # below what is shown, but still in the metric
    limits = AccuracyLimits(min_sqnr_db=-100, max_accuracy_drop=1)
    comparison = compare_accuracy(golden, detection().signature, encode(broken))
    failed = [check for check in accuracy_checks(limits, comparison) if check.blocks]
    assert [check.name for check in failed] == ["accuracy.max_class_drop"]
    assert failed[0].detail.startswith("class 'cat': recall 1.000 before, 0.")
    by_class = {score.label: score for score in comparison.classes}
    assert by_class["cat"].recall < 0.5
    assert (by_class["ant"].recall, by_class["ant"].precision, by_class["ant"].average_precision) == (1, 1, 1)
    assert (comparison.reference_classes[2].label, comparison.reference_classes[2].recall) == ("cat", 1)


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_worst_class_of_a_detector_and_of_a_segmenter_has_a_least_recall(
    task: str, workspace: Callable[..., Workspace]
) -> None:
    rng, out = np.random.default_rng(6), workspace()
    if task == "detection":
        boxes, signature = apart(rng, 60), detection().signature
        truth, found = truth_of(boxes), boxes.copy()
        found[:30][found[:30, :, 4] == 2] = -1
    else:
        truth, signature = rng.integers(0, 3, (60, 8, 8)), detection().signature.replace(task=task, decode=None)
        found = np.where((truth == 2) & (np.arange(60) < 30)[:, None, None], 0, truth)
    np.savez(out.folder / "predictions.npz", test=found, test_labels=truth)
    kept = out.store_file(out.folder / "predictions.npz")
    failures = [
        evaluate(EvaluateConfig(min_recall=least), out, predictions=kept, signature=signature).failures
        for least in (0.2, 0.8)
    ]
    assert [[check.name for check in each] for each in failures] == [[], ["evaluate.min_recall"]]
    assert failures[1][0].detail.startswith("worst class 'cat'")


def test_precision_recall_and_average_precision_of_each_class_are_those_of_the_field() -> None:
    rng = np.random.default_rng(8)
    truth = objects(rng, 40)
    predictions = imperfect(truth, rng)
    scores = detection().class_counts(predictions, truth).scores(LABELS)
    mean = np.mean([score.average_precision for score in scores])
    assert mean == pytest.approx(detection().score(predictions, truth)["map"])
    for number, score in enumerate(scores):
        shown = (predictions[:, :, 4] == number) & (predictions[:, :, 5] >= DECODING.shown_score)
        of_class = truth[:, :, 4] == number
        assert 0 < score.recall < 1
        assert score.images == of_class.any(axis=1).sum()
        assert score.precision * shown.sum() == pytest.approx(score.recall * of_class.sum())  # the right ones


def test_boxes_that_moved_a_little_are_lost_at_the_high_thresholds_of_the_metric() -> None:
    problem, boxes = detection(), apart(np.random.default_rng(4), 20)
    outputs = encode(boxes)
    before, after = (problem.predictions_of(o) for o in (outputs, encode(boxes, shift=1.5)))
    assert before is not None and after is not None

    assert problem.agreement(before, after)(np.ones((1, 20)))[0] == 1  # at an IoU of 0.5
    assert problem.expected_loss(outputs, before, after).drop > AccuracyLimits().max_accuracy_drop


def test_lost_class_costs_more_than_boxes_that_moved_as_far_below_a_perfect_metric() -> None:
    problem, boxes = detection(), apart(np.random.default_rng(4), 40)
    outputs, without = encode(boxes), boxes.copy()
    without[without[:, :, 4] == 0, 4] = -1
    before, moved, lost = (problem.predictions_of(o) for o in (outputs, encode(boxes, shift=3.0), encode(without)))
    assert before is not None and moved is not None and lost is not None

    agreements = [
        problem.weighted_metric(after, problem.as_truth(before))(np.ones((1, 40)))[0] for after in (moved, lost)
    ]
    drops = [problem.expected_loss(outputs, before, after).drop for after in (moved, lost)]
    assert agreements[0] < agreements[1] < 0.7
    assert drops[0] < drops[1] == pytest.approx(LOST_SHARE * (1 - agreements[1]) / 2)


@pytest.mark.parametrize(("lost", "passes"), [(3, True), (4, False)])
def test_gate_asks_without_labels_for_98_of_100_detections(lost: int, passes: bool) -> None:
    boxes = apart(np.random.default_rng(3), 60)
    fewer = boxes.copy()
    fewer[:lost, 0, 4] = -1
    limits, refused = AccuracyLimits(min_sqnr_db=-100, max_accuracy_drop=0.5), []
    for labels in (truth_of(boxes), None):
        compared = compare_accuracy(Golden({}, encode(boxes), labels), detection().signature, encode(fewer))
        assert compared.differences == f"keeps {165 - lost} of 165 detections, 0 new"
        refused.append([check.name for check in accuracy_checks(limits, compared) if check.blocks])
    assert refused == [[], [] if passes else ["accuracy.min_agreement"]]


@pytest.mark.parametrize("score", [0.45, 0.75])
def test_gate_refuses_scores_that_no_longer_tell_certain_objects_from_doubtful_ones(score: float) -> None:
    boxes = apart(np.random.default_rng(3), 60)
    boxes[:, :, 5] = np.random.default_rng(4).uniform(0.45, 0.95, (60, 4))
    limits = AccuracyLimits(min_sqnr_db=-100, max_accuracy_drop=0.5)
    for scores, refused in ((score, ["accuracy.min_agreement"]), (boxes[:, :, 5] + 0.04, [])):
        alike = boxes.copy()
        alike[:, :, 5] = scores
        compared = compare_accuracy(Golden({}, encode(boxes), None), detection().signature, encode(alike))
        assert [check.name for check in accuracy_checks(limits, compared) if check.blocks] == refused


def test_agreement_takes_what_the_reference_shows_as_the_truth() -> None:
    boxes = apart(np.random.default_rng(4), 10)
    weak = boxes.copy()
    weak[:, :, 5] = 0.1  # below decode.shown_score
    assert detection().disagreement(boxes, boxes).after == pytest.approx(1)
    assert detection().disagreement(boxes, boxes + np.array([30, 0, 30, 0, 0, 0], np.float32)).after < 0.1
    assert detection().disagreement(weak, weak).after == 1
    assert detection().disagreement(weak, boxes).after == 0  # all that is shown is new


def test_images_with_the_same_objects_are_counted_by_the_replay() -> None:
    boxes = apart(np.random.default_rng(5), 6)
    moved = boxes.copy()
    moved[0, :, :4] += 30
    moved[1, 0, 4] = (moved[1, 0, 4] + 1) % CLASSES
    moved[2, 0, 5] = 0.2  # no longer shown
    problem = detection()
    found = [problem.predictions_of(encode(rows)) for rows in (boxes, moved)]
    assert found[0] is not None and found[1] is not None
    assert problem.same(found[0], found[1]).tolist() == [False, False, False, True, True, True]


def test_order_of_suppressed_rows_is_no_noise() -> None:
    """Two boxes with almost the same score change places: value by value another output, and the same detections."""
    decode = BoxDecoding(kind="suppressed", scores="scores")
    rows = np.array([[[4, 4, 40, 40, 0.90, 1], [50, 50, 90, 90, 0.89, 2]]], np.float32).repeat(8, axis=0)
    rows[:, :, :4] += 5 * np.arange(8)[:, None, None]  # every image shows its objects elsewhere
    swapped = rows[:, ::-1].copy()
    signature = detection(decode=decode).signature.replace(outputs=detection().signature.outputs[:1])
    truth = rows[:, :, [0, 1, 2, 3, 5, 4]]
    truth[:, :, 5] = 1
    golden = Golden({}, {"scores": rows}, truth)
    compared = compare_accuracy(golden, signature, {"scores": swapped})
    assert compared.sqnr_db is None
    assert compared.agreement[0] == 1
    assert compared.change.drop == 0
    assert not [check for check in accuracy_checks(AccuracyLimits(), compared) if not check.passed]
    moved = compare_accuracy(golden, signature, {"scores": rows + np.array([30, 0, 30, 0, 0, 0], np.float32)})
    assert [check.name for check in accuracy_checks(AccuracyLimits(), moved) if check.blocks]


def test_prediction_is_in_the_pixels_of_the_image() -> None:
    box = np.array([[[24, 12, 72, 48, 1, 0.9]]], np.float32)
    prediction = next(detection().decode(encode(box)))
    assert [line[:7] for line in prediction.lines()] == ["bee 90%"]
    wide = prediction.on_image(192, 384, HOW)
    assert wide.boxes[0].edges == pytest.approx((96, 24, 288, 96), abs=1e-3)
    cropped = prediction.on_image(192, 384, HOW.replace(resize="crop"))
    assert cropped.boxes[0].edges == pytest.approx((144, 24, 240, 96), abs=1e-3)
    # 384x192 pixels become 96x48 between bars of 24 rows; the part of the box that is in a bar is cut.
    inside = prediction.on_image(192, 384, HOW.replace(resize="letterbox"))
    assert inside.boxes[0].edges == pytest.approx((96, 0, 288, 96), abs=1e-3)


def test_boxes_below_the_shown_score_are_scored_and_not_shown() -> None:
    box = np.array([[[24, 12, 72, 48, 1, 0.2]]], np.float32)
    assert (detection().predictions_of(encode(box))[:, :, 4] >= 0).sum() == 1
    assert next(detection().decode(encode(box))).lines() == ["nothing"]


def test_drawing_marks_the_edges_of_a_box() -> None:
    pixels = np.full((40, 80, 3), 200, np.uint8)
    box = Box(label="bee", index=1, score=0.9, left=10, top=10, right=60, bottom=30)
    drawn = detection().draw(pixels, BoxesPrediction(boxes=(box,)))
    plain = detection().draw(pixels, BoxesPrediction(boxes=()))
    assert drawn.shape == plain.shape
    changed = (drawn != plain).any(axis=2)[: 4 * 40]
    assert changed[40:121, [40, 240]].all()
    assert changed[[40, 120], 40:241].all()
    assert not changed[45:116, 45:236].any()  # the label is above the box
    assert changed[:36].any()
    low = Box(label="bee", index=1, score=0.9, left=10, top=1, right=60, bottom=30)
    inside = (detection().draw(pixels, BoxesPrediction(boxes=(low,))) != plain)[8:20, 45:100]
    assert inside.any()  # where there is no room


def test_outputs_that_do_not_fit_are_refused_with_the_key() -> None:
    arrays = encode(apart(np.random.default_rng(6), 1))
    with pytest.raises(StageError, match=r"decode.kind 'ssd' with 3 classes does not fit.*Fix: correct data.decode"):
        detection(decode=DECODING.replace(kind="ssd")).predictions_of(arrays)
    assert detection(decode=None).predictions_of(arrays) is None
