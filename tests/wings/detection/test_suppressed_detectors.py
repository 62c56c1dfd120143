"""Detectors are inferred from their outputs and their data, also those that suppress boxes themselves, and judged."""

from pathlib import Path

import detector_models
import numpy as np
import onnx
import onnx_text
import pytest
from detector_models import SIDE, images, suppressed
from inferred_configs import inferred, saved
from small_images import write_pictures

from configs.brought_model import infer_config
from configs.loader import validated
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError
from gauntlet.core.signature import BoxDecoding, Signature, signature_from_graph
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.output_comparison import Tolerances, compare_outputs
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyComparison, AccuracyLimits, compare_accuracy
from gauntlet.problems.inference import infer_problem
from gauntlet.race.precision import worst_sqnr_db
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from wings.datasets.annotations import padded_boxes
from wings.detection.box_decoding import decode_boxes

pytestmark = pytest.mark.slow
SAMPLES = {"images": images(40)}
CLASSES = tuple(map(str, range(detector_models.CLASSES)))


def outputs_of(model: onnx.ModelProto) -> NamedArrays:
    return batched_inference(open_session(model.SerializeToString()), SAMPLES).run(4)


def signature_of(model: onnx.ModelProto) -> Signature:
    problem = infer_problem(SAMPLES, outputs_of(model), model.graph)
    assert problem.task == "detection", problem.reason
    graph = signature_from_graph(model)
    return graph.replace(task=problem.task, labels=CLASSES, decode=problem.decode, layout="NCHW")


@pytest.mark.parametrize("form", detector_models.ROWS)
def test_every_form_is_recognized_and_gives_the_same_boxes(form: str) -> None:
    model, plain = suppressed(form), suppressed("six")
    decode, own = signature_of(model).decode, signature_of(plain).decode
    assert decode is not None
    assert own is not None
    assert (decode.first_class, decode.shares, bool(decode.count)) == (
        (1, True, True) if form == "tensorflow" else (0, False, False)
    )
    expected = decode_boxes(own, outputs_of(plain), (SIDE, SIDE))
    assert (expected[:, 0, 4] >= 0).all()
    assert np.allclose(decode_boxes(decode, outputs_of(model), (SIDE, SIDE)), expected, atol=1e-4)


def test_rows_beyond_the_number_of_objects_do_not_count() -> None:
    decode = BoxDecoding(kind="suppressed", scores="s", boxes="b", classes="c", count="n")
    outputs: NamedArrays = {
        "b": np.tile(np.array([0, 0, 9, 9], np.float32), (2, 3, 1)),
        "s": np.full((2, 3), 0.9, np.float32),
        "c": np.tile(np.arange(3), (2, 1)),
        "n": np.array([[2], [0]]),
    }
    assert (decode_boxes(decode, outputs, (16, 16))[:, :, 4] >= 0).sum(axis=1).tolist() == [2, 0]


def test_one_object_in_every_image_is_read_without_an_axis_of_rows() -> None:
    decode = BoxDecoding(kind="suppressed", scores="s", boxes="b", classes="c")
    outputs: NamedArrays = {"b": np.tile([1.0, 2, 9, 9], (5, 1)), "s": np.full(5, 0.9), "c": np.arange(5)}
    assert decode_boxes(decode, outputs, (16, 16))[:, 0, 4].tolist() == [0, 1, 2, 3, 4]


def truth_of(model: onnx.ModelProto, decode: BoxDecoding) -> Array:
    """Return the model's own boxes, a little off, as the truth."""
    rng = np.random.default_rng(1)
    found = decode_boxes(decode, outputs_of(model), (SIDE, SIDE))
    rows = [boxes[boxes[:, 5] > 0.4] for boxes in found]
    for boxes in rows:
        boxes[:, :4] += rng.normal(scale=0.3, size=boxes[:, :4].shape)
        boxes[:, 5] = 1
    return padded_boxes(rows)


def judged(model: onnx.ModelProto, candidate: onnx.ModelProto, *, labels: bool) -> tuple[AccuracyComparison, list[str]]:
    signature = signature_of(model)
    assert signature.decode is not None
    golden = Golden({}, outputs_of(model), truth_of(model, signature.decode) if labels else None)
    comparison = compare_accuracy(golden, signature, outputs_of(candidate))
    return comparison, [check.name for check in accuracy_checks(AccuracyLimits(), comparison) if check.blocks]


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("form", detector_models.ROWS)
def test_same_detector_passes_and_one_that_loses_boxes_or_a_class_is_refused(form: str, labels: bool) -> None:
    model = suppressed(form)
    comparison, refused = judged(model, suppressed(form), labels=labels)
    assert not refused
    assert comparison.metric == "map"
    assert comparison.labels_fit
    for broken in (suppressed(form, most=1), suppressed(form, gone=0)):
        assert "accuracy.max_accuracy_drop" in judged(model, broken, labels=labels)[1]


@pytest.mark.parametrize("form", detector_models.ROWS)
def test_numerics_and_the_race_tell_a_lost_class(form: str) -> None:
    model, broken = suppressed(form), suppressed(form, gone=0)
    expected, signature, limits = outputs_of(model), signature_of(model), Tolerances(batch_sizes=(1,))
    cases = {"real": GoldenCase(SAMPLES, expected)}
    for candidate, right in ((model, True), (broken, False)):
        compared = compare_outputs(limits, open_session(candidate.SerializeToString()), cases, signature)
        assert all(row.within(limits) for row in compared.rows) is right
        assert (worst_sqnr_db([*outputs_of(candidate).values()], [*expected.values()]) > 20) is right


def test_folder_s_boxes_judge_a_detector_that_does_not_limit_its_classes(tmp_path: Path) -> None:
    model, folder = suppressed(scale=8.0), write_pictures(tmp_path / "p", "images", count=20)
    onnx.save(model, tmp_path / "m.onnx")
    (folder / "labels").mkdir()
    for image in (folder / "images").iterdir():
        (folder / "labels" / f"{image.stem}.txt").write_text("2 0.5 0.5 0.5 0.25\n")
    (folder / "data.yaml").write_text("names: [a, b, c, d, e, f, g]\n")
    found = infer_config(tmp_path / "m.onnx", folder, None, {})
    assert found.values["data"]["labels"] == list("abcdefg")
    (folder / "data.yaml").write_text("names: [a, b, c]\n")
    few = infer_config(tmp_path / "m.onnx", folder, None, {})
    assert "boxes of 3 classes are left out, because the model has" in few.notes["problem"]


def test_detector_that_finds_nothing_is_compared_as_arrays_and_says_why() -> None:
    outputs: NamedArrays = {"boxes": np.zeros((40, 0, 4), np.float32), "labels": np.zeros((40, 0), np.int64)}
    problem = infer_problem(SAMPLES, outputs)
    assert (problem.task, "boxes is empty for every sample" in problem.reason) == ("arrays", True)


def test_model_whose_outputs_depend_on_the_number_of_samples_is_refused_and_told_how_to_fix_the_batch(
    tmp_path: Path,
) -> None:
    model = onnx_text.model(
        """search (float[n,8] x) => (int64[found,2] places)
        { found = NonZero(x) places = Transpose<perm = [1, 0]>(found) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).integers(0, 2, (40, 8)).astype(np.float32))
    with pytest.raises(ConfigError, match=r"not one entry per sample.*--dim_param n --dim_value 1"):
        infer_config(tmp_path / "m.onnx", tmp_path / "x.npz", None, {})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "m.onnx")
    assert "data" in infer_config(tmp_path / "m.onnx", tmp_path / "x.npz", None, {}).values


def test_detector_that_finds_something_only_in_images_from_0_to_1_is_recognized(tmp_path: Path) -> None:
    model, folder = suppressed(scale=8.0), write_pictures(tmp_path / "p", ".", count=20)
    multiplied = next(node for node in model.graph.node if "chosen_scores" in node.output)
    multiplied.input[0] = "scores_from_0_to_1"
    place = list(model.graph.node).index(multiplied)
    onnx_text.extend(
        model,
        """<float zero_level = {0}> {
            darkest = ReduceMin<keepdims = 0>(images) below = Less(darkest, zero_level) within = Not(below)
            factor = Cast<to = 1>(within) scores_from_0_to_1 = Mul(all_scores, factor)
        }""",
        place,
    )
    onnx.save(model, tmp_path / "m.onnx")
    values = infer_config(tmp_path / "m.onnx", folder, None, {}).values["data"]
    assert (values["task"], values["decode"]["kind"], values["mean"]) == ("detection", "suppressed", [0.0] * 3)


def test_detector_of_images_in_bytes_is_recognized() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, SIDE, SIDE, 3), np.uint8)
    assert infer_problem({"image": pixels}, outputs_of(suppressed("tensorflow"))).task == "detection"


def test_detector_is_inferred_from_its_outputs_for_real_samples(tmp_path: Path) -> None:
    model, samples = saved(tmp_path / "m.onnx", detector_models.yolov8()), tmp_path / "samples.npz"
    np.savez(samples, images=detector_models.images(40))
    found, config = inferred(model, samples)
    assert (config.data.task, config.data.decode.kind, config.data.decode.scores) == ("detection", "yolov8", "output0")
    assert config.data.labels == ("0", "1", "2", "3", "4", "5")
    assert config.data.load().signature.labels == config.data.labels
    assert found.notes["problem"] == (
        "detection (yolov8): output0 [n, 10, 64] holds 4 rows of boxes in pixels and 6 of probabilities; "
        "override with --task"
    )


def test_names_of_the_classes_must_be_as_many_as_a_detectors(tmp_path: Path) -> None:
    model, samples = saved(tmp_path / "m.onnx", detector_models.yolov8()), tmp_path / "samples.npz"
    np.savez(samples, images=detector_models.images(40))
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    with pytest.raises(ConfigError, match="--labels: 2 labels, but the outputs are of 6 classes"):
        infer_config(model, samples, tmp_path / "labels.txt", {})


def test_random_samples_prove_no_detector(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", detector_models.yolov8())
    found, config = inferred(model)
    assert config.data.task == "arrays"
    assert found.notes["problem"].endswith(
        "which random samples do not prove; bring real ones with --data, or name it with --task detection"
    )
    config = validated(model, infer_config(model, None, None, {}, task="detection").values)
    signature = config.data.load().signature
    assert (signature.task, signature.decode.kind, len(signature.labels)) == ("detection", "yolov8", 6)


def yolo_folder(path: Path, names: str) -> Path:
    """Write twenty images with one object each, and the names of the classes."""
    folder = write_pictures(path / "p", "images", count=20)
    (folder / "labels").mkdir()
    for image in (folder / "images").iterdir():
        (folder / "labels" / f"{image.stem}.txt").write_text("2 0.5 0.5 0.5 0.25\n")
    (folder / "data.yaml").write_text(names)
    return folder


@pytest.mark.parametrize(
    ("names", "labels"), [("names: [a, b, c, d, e, f]", tuple("abcdef")), ("names: ['0', '1', '2']", tuple("012345"))]
)
def test_detector_is_judged_by_the_boxes_of_its_folder(tmp_path: Path, names: str, labels: tuple[str, ...]) -> None:
    model = saved(tmp_path / "m.onnx", detector_models.yolov8())
    found, config = inferred(model, yolo_folder(tmp_path, names))
    assert found.notes["problem"].endswith(
        "; judged by the folder's boxes, whose classes are ASSUMED to be in its order"
    )
    assert (config.data.annotations, config.data.resize, config.data.mean) == ("yolo", "letterbox", (0, 0, 0))
    assert "mean [0.0, 0.0, 0.0], std [1.0, 1.0, 1.0], letterbox to 64x64" in found.notes["images"]
    dataset = config.data.load()
    assert (dataset.signature.task, dataset.signature.labels) == ("detection", labels)
    box = dataset.splits["test"].labels[0][0].tolist()
    assert (box[2] - box[0], *box[4:]) == (32, 2, 1)


def test_names_of_the_user_order_the_classes_of_a_folder(tmp_path: Path) -> None:
    model, folder = saved(tmp_path / "m.onnx", detector_models.yolov8()), yolo_folder(tmp_path, "names: [a, b, c]")
    (tmp_path / "labels.txt").write_text("\n".join("fedcba"))
    found = infer_config(model, folder, tmp_path / "labels.txt", {})
    dataset = validated(model, found.values).data.load()
    assert (dataset.signature.labels, dataset.splits["test"].labels[0][0][4]) == (tuple("fedcba"), 3)
    (tmp_path / "labels.txt").write_text("\n".join("uvwxyz"))
    with pytest.raises(ConfigError, match="the class 'a' is not among the labels of --labels"):
        infer_config(model, folder, tmp_path / "labels.txt", {})


def test_boxes_of_other_classes_than_the_models_are_left_out_and_unreadable_ones_refused(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", detector_models.yolov8())
    folder = yolo_folder(tmp_path, "names: [cat, dog]")
    found, config = inferred(model, folder)
    assert "boxes of 2 classes are left out, because the model has 6" in found.notes["problem"]
    assert config.data.annotations is None
    (folder / "data.yaml").write_text("names")
    with pytest.raises(ConfigError, match=r"data\.yaml: no names of classes in it.*Fix: write names: \[cat, dog\]"):
        infer_config(model, folder, None, {})


def test_images_without_labels_keep_what_was_inferred(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", detector_models.yolov8())
    _, config = inferred(model, write_pictures(tmp_path / "p", ".", count=20))
    signature = config.data.load().signature
    assert (signature.task, signature.decode.kind, len(signature.labels)) == ("detection", "yolov8", 6)
    assert config.data.load().splits["test"].labels is None
