"""A configuration inferred from a detector's file and its data."""

from pathlib import Path
from typing import Any

import detector_models
import numpy as np
import onnx
import pytest
import yaml
from small_images import write_pictures

from configs.brought_model import InferredConfig, infer_config
from configs.loader import load
from gauntlet.core.errors import ConfigError


def saved(path: Path, proto: onnx.ModelProto) -> Path:
    onnx.save(proto, path)
    return path


def inferred(model: Path, data: Path | None = None) -> Any:
    found = infer_config(model, data, None, {})
    return found, load(str(written(model.with_suffix(".yaml"), found)))


def written(path: Path, found: InferredConfig) -> Path:
    """Write the values as the command line does."""
    path.write_text(yaml.safe_dump(found.values, sort_keys=False))
    return path


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
    config = load(str(written(tmp_path / "requested.yaml", requested)))
    signature = config.data.load().signature
    assert (signature.task, signature.decode.kind, len(signature.labels)) == ("detection", "yolov8", 6)


def test_images_without_labels_keep_what_was_inferred(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", detector_models.yolov8())
    _, config = inferred(model, write_pictures(tmp_path / "p", ".", count=20))
    signature = config.data.load().signature
    assert (signature.task, signature.decode.kind, len(signature.labels)) == ("detection", "yolov8", 6)
    assert config.data.load().splits["test"].labels is None
