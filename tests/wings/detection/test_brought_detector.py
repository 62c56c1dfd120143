"""A configuration inferred from a detector's file and its data."""

from pathlib import Path

import detector_models
import numpy as np
import pytest
from inferred_configs import inferred, saved
from small_images import write_pictures

from configs.brought_model import infer_config
from configs.loader import validated
from gauntlet.core.errors import ConfigError


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
    requested = infer_config(model, None, None, {}, task="detection")
    config = validated(model, requested.values)
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
