"""The judgement sees every output, and what a person would miss first; without labels it speaks the problem's words."""

import numpy as np
import pytest
from problem_samples import problem, sample

from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import BoxDecoding, Preprocessing, Signature, Task, TensorSpec
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.output_noise import usual_samples
from gauntlet.problems import problem_of
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyComparison, AccuracyLimits, compare_accuracy

RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((200, 5)).astype(np.float32)
CODES = SCORES.argmax(1).astype(np.int64)
RARE = np.arange(4000) % 100 == 50
ARRAYS = Signature(task="arrays", inputs=(), outputs=(), layout="none")
CLASSES = Signature(task="classification", inputs=(), outputs=(), labels=tuple("abcde"), primary_output="scores")


def blocking(comparison: AccuracyComparison, **limits: object) -> dict[str, Check]:
    checks = accuracy_checks(AccuracyLimits.model_validate(limits), comparison)
    return {check.name: check for check in checks if check.blocks}


@pytest.mark.parametrize("scale", [-1.0, 0.0], ids=["inverted", "constant"])
@pytest.mark.parametrize("spread", [0.45, 0.15])
def test_value_that_varies_less_than_most_and_is_lost_is_refused(scale: float, spread: float) -> None:
    values, noise = np.random.default_rng(0).standard_normal((2, 300, 200))
    values[:, [40, 160]] *= spread
    lost, noisy = values.copy(), values + 0.07 * noise
    lost[:, [40, 160]] *= scale
    golden = Golden({}, {"values": values.astype(np.float32)})
    refused = blocking(compare_accuracy(golden, ARRAYS, {"values": lost.astype(np.float32)}))
    assert list(refused) == ["accuracy.min_values_sqnr_db"]
    assert not blocking(compare_accuracy(golden, ARRAYS, {"values": noisy.astype(np.float32)}))


@pytest.mark.parametrize("labels", [None, CODES])
@pytest.mark.parametrize("code", [CODES, CODES == 2, CODES.astype(np.str_)])
def test_output_of_integers_booleans_or_texts_that_is_wrong_is_refused(labels: np.ndarray, code: np.ndarray) -> None:
    golden = Golden({}, {"scores": SCORES, "code": code}, labels)
    assert not blocking(compare_accuracy(golden, CLASSES, {"scores": SCORES, "code": code}))
    refused = blocking(compare_accuracy(golden, CLASSES, {"scores": SCORES, "code": code[::-1].copy()}))
    assert list(refused) == ["accuracy.min_agreement"]
    assert "output 'code'" in refused["accuracy.min_agreement"].detail


@pytest.mark.parametrize(
    "code", [RARE, RARE.astype(np.int64)[:, None], RARE.reshape(40, 4, 25)], ids=["flag", "column", "mask"]
)
def test_rare_value_of_an_output_that_is_lost_is_refused_however_many_are_equal(code: np.ndarray) -> None:
    refused = blocking(compare_accuracy(Golden({}, {"code": code}), ARRAYS, {"code": np.zeros_like(code)}))
    assert list(refused) == ["accuracy.max_class_drop", "accuracy.min_agreement"]
    assert "of output 'code'" in refused["accuracy.max_class_drop"].detail
    few = code.copy()
    few[np.argwhere(code)[0][0]] = 0
    assert not blocking(compare_accuracy(Golden({}, {"code": code}), ARRAYS, {"code": few}))


def test_tokens_that_are_lost_are_refused_however_much_padding_is_equal() -> None:
    tokens = np.zeros((200, 128), np.int64)
    tokens[:, :2] = RNG.integers(1, 30000, (200, 2))
    golden = Golden({}, {"tokens": tokens})
    refused = blocking(compare_accuracy(golden, ARRAYS, {"tokens": np.zeros_like(tokens)}))
    assert list(refused) == ["accuracy.min_agreement"]
    assert "values other than the most frequent one in output 'tokens'" in refused["accuracy.min_agreement"].detail
    few = np.where(np.arange(200)[:, None] < 20, 0, tokens)
    assert not blocking(compare_accuracy(golden, ARRAYS, {"tokens": few}))


@pytest.mark.parametrize("shape", [(200, 1), (1, 5), (200, 5, 1)])
def test_shape_that_would_only_broadcast_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(StageError, match=r"output 'scores' is \[.*\]; the FP32 model's has shape \[200, 5\]"):
        compare_accuracy(Golden({}, {"scores": SCORES}), CLASSES, {"scores": np.zeros(shape, np.float32)})


def test_labels_that_mean_nothing_do_not_decide() -> None:
    """The original is right on 20 % of five classes; a file that changes every tenth prediction loses nothing there."""
    labels, changed = RNG.integers(0, 5, 200), SCORES.copy()
    changed[::10] = np.roll(changed[::10], 1, axis=1)
    comparison = compare_accuracy(Golden({}, {"scores": SCORES}, labels), CLASSES, {"scores": changed})
    assert not comparison.labels_fit
    assert comparison.change is not None
    refused = blocking(comparison, min_sqnr_db=-100)
    assert list(refused) == ["accuracy.max_accuracy_drop"]
    assert "20 of 200 classes differ" in refused["accuracy.max_accuracy_drop"].detail
    assert "labels the FP32 model predicts hardly better than chance" in refused["accuracy.max_accuracy_drop"].detail


@pytest.mark.parametrize("scale", [1, 1000], ids=["worse than a constant", "in another unit"])
def test_labels_that_show_hardly_any_loss_do_not_decide(scale: float) -> None:
    """R² is near or below 0, although the values correlate: a file that loses a tenth would lose nothing there."""
    values, noise = RNG.normal(size=(2, 300, 1)).astype(np.float32)
    labels = scale * values + 5
    signature = CLASSES.replace(task="regression", labels=("y",))
    comparison = compare_accuracy(Golden({}, {"scores": values}, labels), signature, {"scores": values + 0.3 * noise})
    assert not comparison.labels_fit
    assert "accuracy.max_accuracy_drop" in blocking(comparison)


def test_labels_that_fit_decide_alone() -> None:
    comparison = compare_accuracy(Golden({}, {"scores": SCORES}, CODES), CLASSES, {"scores": SCORES})
    assert comparison.labels_fit
    assert comparison.expected_loss is None


TASKS: dict[Task, str] = {
    "classification": "60 classes differ",
    "multi-label": "60 samples have other labels",
    "segmentation": "mask IoU 0.",
    "text": "60 lines of text differ",
    "embedding": "mean cosine 0.",
    "regression": "against the reference's values",
}


@pytest.mark.parametrize(("task", "words"), TASKS.items())
def test_differences_are_told_in_the_words_of_the_problem(task: Task, words: str) -> None:
    outputs, _ = sample(task, np.random.default_rng(5))
    noisy = outputs + np.random.default_rng(6).normal(scale=0.3, size=outputs.shape).astype(np.float32)
    comparison = compare_accuracy(Golden({}, {"y": outputs}), problem(task).signature, {"y": noisy})
    assert words in comparison.differences
    check = blocking(comparison, min_sqnr_db=-100, max_accuracy_drop=0)["accuracy.max_accuracy_drop"]
    assert "95 % interval" in check.detail
    assert comparison.differences in check.detail


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("classification", "the only class predicted is 'a'"),
        ("multi-label", "no label is predicted"),
        ("segmentation", "every pixel is 'a'"),
        ("text", "no text is read"),
    ],
)
def test_samples_that_hold_nothing_to_lose_prove_nothing(task: Task, reason: str) -> None:
    outputs, _ = sample(task, np.random.default_rng(5))
    nothing = np.zeros_like(outputs)
    if task == "multi-label":
        nothing -= 1
    elif task == "text":
        nothing[:, :, 0] = 1
    else:
        nothing[:, 0] = 1
    nothing = nothing + 0.01 * outputs
    golden, signature = Golden({}, {"y": nothing}), problem(task).signature
    assert not blocking(compare_accuracy(golden, signature, {"y": nothing}))
    comparison = compare_accuracy(golden, signature, {"y": nothing * np.float32(1 + 1e-3)})
    refused = blocking(comparison)
    assert list(refused) == ["accuracy.unresolved"]
    assert reason in refused["accuracy.unresolved"].detail
    assert not blocking(comparison, unresolved="accept")


def test_classes_of_positions_are_compared_position_by_position() -> None:
    tokens = RNG.standard_normal((20, 30, 7)).astype(np.float32)
    changed = tokens.copy()
    changed[3, :4] = np.roll(changed[3, :4], 1, axis=-1)
    comparison = compare_accuracy(Golden({}, {"scores": tokens}), CLASSES, {"scores": changed})
    assert comparison.differences == "4 of 600 classes differ"
    assert 0 < comparison.expected_loss.drop < 4 / 600


def test_texts_without_known_labels_are_told_apart() -> None:
    golden = Golden({}, {"scores": np.array(["cat", "dog"] * 50)})
    other = {"scores": np.array(["cat", "eel"] * 50)}
    unlabelled = CLASSES.replace(labels=())
    assert compare_accuracy(golden, unlabelled, other).differences == "50 of 100 classes differ"


def test_output_that_no_problem_reads_has_the_stricter_limit() -> None:
    """100 +- 1 with noise of a quarter of the deviation: the uncentered cosine is 0.99999."""
    values = 100 + RNG.standard_normal((300, 2)).astype(np.float32)
    noisy = values + 0.25 * RNG.standard_normal((300, 2)).astype(np.float32)
    refused = blocking(compare_accuracy(Golden({}, {"y": values}), ARRAYS, {"y": noisy}))
    assert list(refused) == ["accuracy.min_values_sqnr_db"]
    assert 10 < float(refused["accuracy.min_values_sqnr_db"].value or 0) < 14


HOW = Preprocessing(height=64, width=64, scale=1 / 255, mean=(0, 0, 0), std=(1, 1, 1))
DETECTOR = Signature(
    task="detection",
    inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", 3, 64, 64)),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=("batch", 7, 30)),),
    decode=BoxDecoding(kind="yolov8", scores="y", shown_score=0.25),
    labels=("a", "b", "c"),
    preprocessing=HOW,
)


def concatenated(samples: int = 40) -> np.ndarray:
    """Return boxes in pixels and scores from 0 to 1 in one output, as a YOLOv8 network has them; two objects each."""
    rng = np.random.default_rng(1)
    boxes = np.concatenate([rng.uniform(16, 48, (samples, 2, 30)), rng.uniform(8, 16, (samples, 2, 30))], axis=1)
    scores = rng.uniform(0, 0.02, (samples, 3, 30))
    for index in range(samples):
        boxes[index, :2, :2] = [[16, 48], [16, 48]]
        scores[index, rng.integers(3, size=2), [0, 1]] = rng.uniform(0.5, 0.9, 2)
    return np.concatenate([boxes, scores], axis=1).astype(np.float32)


def test_detector_whose_scores_are_lost_beside_its_boxes_is_refused_and_told_so() -> None:
    output = concatenated()
    rounded = np.rint(output / 2.5) * 2.5  # one scale for boxes of 64 pixels and scores of 1
    comparison = compare_accuracy(Golden({}, {"y": output}), DETECTOR, {"y": rounded})
    assert comparison.differences == "keeps 0 of 80 detections, 0 new"
    limits = ("max_accuracy_drop", "max_class_drop", "min_agreement", "min_sqnr_db")
    assert sorted(blocking(comparison)) == [f"accuracy.{name}" for name in limits]
    assert blocking(compare_accuracy(Golden({}, {"y": output}), ARRAYS, {"y": rounded}))


def test_samples_without_a_detection_prove_nothing() -> None:
    output = concatenated()
    output[:, 4:] *= 0.1
    assert not blocking(compare_accuracy(Golden({}, {"y": output}), DETECTOR, {"y": output}))
    comparison = compare_accuracy(Golden({}, {"y": output}), DETECTOR, {"y": output * np.float32(1.001)})
    assert "nothing is detected" in blocking(comparison)["accuracy.unresolved"].detail


def prices(samples: int = 1000) -> np.ndarray:
    """Return values of 2 on average, one in a hundred of which is some hundreds, shape (n, 1)."""
    rng = np.random.default_rng(0)
    usual = rng.gamma(2, 1, samples)
    return np.where(np.arange(samples) % 100, usual, rng.uniform(200, 1000, samples))[:, None].astype(np.float32)


def failed(task: Task, before: np.ndarray, after: np.ndarray, truth: np.ndarray | None = None) -> list[str]:
    signature = Signature(task=task, layout="none", inputs=(), outputs=(), labels=("price",))
    comparison = compare_accuracy(Golden({}, {"y": before}, truth), signature, {"y": after})
    return [check.name for check in accuracy_checks(AccuracyLimits(), comparison) if check.blocks]


def rounded(values: np.ndarray, step: float) -> np.ndarray:
    return (np.round(values / step) * step).astype(np.float32)


@pytest.mark.parametrize(
    ("task", "labelled", "check"),
    [
        ("regression", True, "accuracy.max_accuracy_drop"),
        ("regression", False, "accuracy.max_accuracy_drop"),
        ("arrays", False, "accuracy.min_values_sqnr_db"),
    ],
)
def test_rounding_of_all_usual_prices_to_nothing_is_refused(task: Task, labelled: bool, check: str) -> None:
    before = prices()
    truth = before + np.random.default_rng(1).normal(0, 0.2, before.shape) if labelled else None
    assert failed(task, before, rounded(before, 8), truth) == [check]
    assert failed(task, before, rounded(before, 0.1), truth) == []


@pytest.mark.parametrize("task", ["regression", "arrays"])
def test_noise_far_below_the_few_values_that_count_is_not_refused(task: Task) -> None:
    """Of a thousand days, ten have a claim; a model says nearly nothing for the others."""
    rng = np.random.default_rng(2)
    before = np.where(np.arange(1000) % 100, rng.normal(0, 1e-3, 1000), rng.uniform(1, 5, 1000))[:, None]
    after = before + rng.normal(0, 3e-3, before.shape)
    assert failed(task, before.astype(np.float32), after.astype(np.float32)) == []


def test_values_without_a_heavy_tail_are_judged_as_a_whole() -> None:
    assert usual_samples(np.random.default_rng(3).normal(size=(200, 3))) is None
    assert usual_samples(np.zeros((5, 1))) is None
    assert usual_samples(np.zeros((0, 1))) is None
    kept = usual_samples(prices())
    assert kept is not None and 0.94 < kept.mean() < 1


def test_single_number_without_a_label_is_shown_as_it_is() -> None:
    signature, outputs = CLASSES.replace(task="regression", primary_output="y"), {"y": np.array([[0.744], [2]])}
    shown = {name: [*problem_of(signature.replace(labels=name)).decode(outputs)] for name in ((), ("price",))}
    assert [prediction.lines() for prediction in shown[()]] == [["0.744"], ["2"]]
    assert shown["price",][0].lines() == ["price 0.744"]
