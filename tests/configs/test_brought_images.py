"""A configuration inferred from a model and a folder of images."""

from pathlib import Path

import exported_models
import numpy as np
import onnx
import onnx_text
import pytest
from inferred_configs import classifier, inferred, saved
from small_images import write_pictures

from configs.brought_model import infer_config
from configs.loader import validated
from gauntlet.core.errors import ConfigError
from gauntlet.core.signature import Preprocessing, signature_from_graph


def test_images_in_class_folders_are_labelled_and_preprocessed_by_assumption(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "p", "cat", "dog", "owl")
    found, config = inferred(classifier(tmp_path / "m.onnx"), pictures)
    assert (config.data.kind, config.data.input_name, config.data.image_size) == ("image-folder", "image", (32, 32))
    assert config.data.labelled
    assert "ASSUMED" in found.notes["images"]
    assert "data.mean" in found.notes["images"]
    assert "ASSUMED to be the folders' names, sorted; set with --labels FILE" in found.notes["samples"]
    assert config.data.load().signature.labels == ("cat", "dog", "owl")


def test_labels_decide_the_class_of_each_folder(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "p", "cat", "dog")
    (tmp_path / "labels.txt").write_text("owl\ndog\ncat\n")
    _, config = inferred(classifier(tmp_path / "m.onnx"), pictures, tmp_path / "labels.txt")
    dataset = config.data.load()
    assert dataset.signature.labels == ("owl", "dog", "cat")
    test = dataset.splits["test"]
    assert test.labels is not None
    assert [("owl", "dog", "cat")[label] for label in test.labels] == [Path(file).parts[0] for file in test.files]


def test_labels_must_be_as_many_as_the_classes(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    with pytest.raises(ConfigError, match="2 labels, but the model has scores for 3 classes"):
        infer_config(
            classifier(tmp_path / "m.onnx"), write_pictures(tmp_path / "p", "cat"), tmp_path / "labels.txt", {}
        )


def test_flat_folder_and_folders_that_are_not_the_classes_have_no_labels(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m.onnx")
    _, config = inferred(model, write_pictures(tmp_path / "flat", ".", count=20))
    dataset = config.data.load()
    assert (config.data.labelled, dataset.splits["test"].labels, dataset.signature.labels) == (False, None, ())
    found, config = inferred(model, write_pictures(tmp_path / "p", "one", "two"))
    assert not config.data.labelled
    assert "its 2 folders are not the model's 3 classes" in found.notes["samples"]


def test_folders_are_the_two_classes_of_a_model_with_one_number(tmp_path: Path) -> None:
    text = (
        "m (float[n,3,8,8] x) => (float[n,1] p) { m = ReduceMean<axes = [1,2,3], keepdims = 0>(x) p = Unsqueeze(m, a) }"
    )
    model = saved(tmp_path / "m.onnx", onnx_text.model(text, {"a": np.array([1])}, opset=13))
    found = infer_config(model, write_pictures(tmp_path / "p", "cat", "dog"), None, {}, threshold=0.3)
    data = validated(model, found.values).data.load()
    assert (data.signature.labels, data.signature.threshold) == (("cat", "dog"), 0.3)
    flat = write_pictures(tmp_path / "flat", ".", count=20)
    with pytest.raises(ConfigError, match="--threshold needs samples of two classes"):
        infer_config(model, flat, None, {}, threshold=0.3)


def test_own_signature_says_how_images_are_preprocessed(tmp_path: Path) -> None:
    proto = onnx.load(classifier(tmp_path / "m.onnx"))
    how = Preprocessing(height=32, width=32, scale=1 / 255, mean=(0.1, 0.2, 0.3), std=(1, 1, 1), resize="stretch")
    signature_from_graph(proto).replace(layout="NCHW", preprocessing=how).write(proto)
    found, config = inferred(saved(tmp_path / "m.onnx", proto), write_pictures(tmp_path / "p", "a", "b", "c"))
    assert (config.data.mean, config.data.resize) == ((0.1, 0.2, 0.3), "stretch")
    assert "ASSUMED" not in found.notes["images"]


def test_request_for_another_problem_than_folders_of_classes_leaves_their_labels_out(tmp_path: Path) -> None:
    model, pictures = classifier(tmp_path / "m.onnx"), write_pictures(tmp_path / "p", "a", "b", "c")
    requested = infer_config(model, pictures, None, {}, task="multi-label")
    dataset = validated(model, requested.values).data.load()
    assert (dataset.signature.task, dataset.splits["test"].labels) == ("multi-label", None)


def test_images_are_refused_by_a_model_that_takes_none(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", exported_models.products())
    with pytest.raises(ConfigError, match=r"takes x float32 \[n, 64\]. Fix: --data FILE.npz"):
        infer_config(model, write_pictures(tmp_path / "p", "a", "b"), None, {})
