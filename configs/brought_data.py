"""Infer where a brought model's samples come from, and what they are."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError, one_line
from gauntlet.core.kinds import removed
from gauntlet.core.signature import TensorSpec
from gauntlet.datasets.directory_index import index_directory, is_visible, printable_name
from gauntlet.datasets.normalized_images import IMAGENET
from gauntlet.datasets.splits import SPLITS, array_name, is_truth
from gauntlet.datasets.splitting import GROUPS, TIMES
from gauntlet.frameworks.trial_run import TrialRun

LAYOUTS = {"NCHW": 1, "NHWC": 3}
"""Layout of a batch of images -> axis of the channels."""
GRAY = {"mean": [0.5], "std": [0.5]}
ASSUMED = "ASSUMED:"
RANDOM_SAMPLES = 96
FRACTIONS = {"validation": 0, "calibration": 0.3, "test": 0.7}


def describe(spec: TensorSpec) -> str:
    """Return type and shape as text: `float32 [batch, 3, 224, 224]`."""
    return f"{spec.dtype} [{', '.join(map(str, spec.shape))}]"


def read_arrays(data: Path) -> NamedArrays | None:
    """Return the arrays of an .npz file, or of the first in a folder; None for a folder without any.

    Raises:
        ConfigError: when there is no such file or folder, or it holds anything else.
    """
    if not data.exists():
        raise ConfigError(f"--data {data}: no such file or folder")
    files = sorted(data.glob("*.npz")) if data.is_dir() else [data]
    if not files:
        return None
    if files[0].suffix != ".npz":
        fix = removed("samples.*")  # what reads other files
        expected = "expected an .npz file of inputs by name, or a folder of images"
        raise ConfigError(f"--data {data}: {expected}" + (f". {fix}" if fix else ""))
    try:
        with np.load(files[0], allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged file fails in many ways
        fix = "Fix: write it again, with numpy.savez and arrays of numbers or texts"
        raise ConfigError(f"--data {files[0]}: not an .npz file of plain arrays ({one_line(error)}). {fix}") from error
    if "labels" in arrays and arrays["labels"].dtype.kind == "b":
        arrays["labels"] = arrays["labels"].astype(np.int64)
    if any(array.ndim == 0 for array in arrays.values()):
        fix = "Fix: leave out what is one number for all of them"
        raise ConfigError(f"--data {files[0]}: every array needs the samples as its first axis. {fix}")
    return arrays


def layout_of(shape: tuple[int | str, ...]) -> str | None:
    """Return the layout of a batch of images: where 1 or 3 channels are; None for another shape."""
    if len(shape) != 4:
        return None
    return next((layout for layout, axis in LAYOUTS.items() if shape[axis] in (1, 3)), None)


def first_layout(shapes: Iterable[tuple[int | str, ...]]) -> str:
    """Return the layout of the first of several inputs that holds images, or `none`."""
    return next((layout for shape in shapes if (layout := layout_of(shape))), "none")


def data_part(
    data: Path | None,
    arrays: NamedArrays | None,
    names: tuple[str, ...],
    trial: TrialRun,
    notes: dict[str, str],
    onnx_file: Path | None,
) -> dict[str, Any]:
    """Return the part `data` of a configuration, and note what was found or assumed.

    `arrays` are those of `data`, None where it is a folder of images; `names` are the classes; `onnx_file` is the model
    where it declares its inputs itself.

    Raises:
        ConfigError: when the data does not fit the model.
    """
    if data is None:
        return _random(trial, notes, onnx_file)
    return _images(data, names, trial, notes) if arrays is None else _arrays(data, arrays, names, trial, notes)


def _random(trial: TrialRun, notes: dict[str, str], onnx_file: Path | None) -> dict[str, Any]:
    notes["samples"] = f"{RANDOM_SAMPLES} random ones: noise. Accuracy and ranges may differ; bring real ones: --data"
    part: dict[str, Any] = {"kind": "synthetic", "samples": RANDOM_SAMPLES}
    if onnx_file is not None:
        part["model"] = str(onnx_file.resolve())
    else:
        part["inputs"] = [spec.model_dump(mode="json") for spec in trial.inputs]
        part["layout"] = first_layout(spec.shape for spec in trial.inputs)
    if trial.dynamic_axes:
        part["dynamic_axes"] = trial.dynamic_axes
    return part | ({"no_batch_axis": True} if trial.no_batch_axis else {})


def _arrays(
    path: Path, arrays: NamedArrays, names: tuple[str, ...], trial: TrialRun, notes: dict[str, str]
) -> dict[str, Any]:
    count = len(next(iter(arrays.values()), ()))
    truth = " and ".join(filter(is_truth, arrays)) or "no labels"
    by = ", split by group" if GROUPS in arrays else ", split by time" if TIMES in arrays else ""
    whole = f"{count} in {path}, with {truth}; 30 % calibrate, 70 % test{by}"
    notes["samples"] = f"{path} (its own splits), with {truth}" if (path / "test.npz").is_file() else whole
    layout = first_layout(array.shape for name, array in arrays.items() if not is_truth(name))
    part: dict[str, Any] = {"kind": "arrays", "path": str(path.resolve()), "split_fractions": FRACTIONS}
    taken = {spec.name: arrays.get(array_name(spec.name)) for spec in trial.inputs if spec.dtype.startswith("float")}
    if levels := [
        name for name, array in taken.items() if array is not None and array.dtype == np.uint8 and array.max() > 1
    ]:
        notes["scale"] = f"{ASSUMED} levels of {levels[0]} are taken as they are, from 0 to 255, and not divided by 255"
    labels = arrays.get("labels")
    are_names = labels is not None and _are_names(labels, names, trial)
    if are_names and not names and trial.class_count is None:
        notes["samples"] += f"; class indices {ASSUMED.rstrip(':')} to be the labels, sorted"
    if trial.task is None and are_names:
        part["task"] = "classification"  # texts alone suggest texts to read
    return part | {"layout": layout} | ({"labels": list(names)} if names else {})


def _are_names(labels: Array, names: tuple[str, ...], trial: TrialRun) -> bool:
    """Return whether texts are names of classes: the model has names, the user gives them, or there are as many."""
    classes = {*np.unique(labels).tolist()} if labels.dtype.kind == "U" else set()
    scored = trial.scores is not None and len(classes) == trial.scores.shape[1]
    return bool(classes) and (trial.class_count is not None or classes <= {*names} or scored)


def _images(data: Path, names: tuple[str, ...], trial: TrialRun, notes: dict[str, str]) -> dict[str, Any]:
    """Return the part `data` for a folder of images, with the preprocessing that is known or assumed."""
    spec = trial.inputs[0]
    if len(spec.shape) == 3 and trial.no_batch_axis:
        spec = spec.replace(shape=("batch", *spec.shape))
    layout = trial.layout if trial.layout != "none" else layout_of(spec.shape)
    if len(trial.inputs) > 1 or layout is None or not spec.dtype.startswith("float"):
        taken = "; ".join(f"{each.name} {describe(each)}" for each in trial.inputs)
        raise ConfigError(
            f"--data {data}: a folder of images fits a model with one float input of 1 or 3 channels; this one takes "
            f"{taken}. Fix: --data FILE.npz, one array per input by name"
        )
    channels = LAYOUTS[layout]
    axes = [axis for axis in (1, 2, 3) if axis != channels]
    size = [trial.dynamic_axes.get(str(spec.shape[axis]), spec.shape[axis]) for axis in axes]
    part: dict[str, Any] = {"kind": "image-folder", "path": str(data.resolve()), "image_size": size, "layout": layout}
    part |= {"input_name": spec.name, "max_skipped": 1000, "split_fractions": FRACTIONS}
    if trial.preprocessing is not None:
        how = trial.preprocessing
        part |= how.model_dump(
            mode="json", include={"mean", "std", "resize", "padding", "interpolation", "channel_order"}
        )
        notes["images"] = "preprocessed as the model's own signature says"
    else:
        part |= {name: [*values] for name, values in IMAGENET.items()} if spec.shape[channels] == 3 else GRAY
        notes["images"] = ASSUMED
        if (known := trial.images) is not None:
            part |= {"mean": [*known.mean], "std": [*known.std], "resize": known.resize}
            part |= {"channel_order": "BGR"} if known.channel_order == "BGR" else {}
            notes["images"] += f" {known.why}:"
    return part | _image_labels(data, names, trial, notes)


def describe_images(part: dict[str, Any], notes: dict[str, str]) -> None:
    """Say what is assumed of images, and whether they have boxes, once it is known what the model is for."""
    if (assumed := notes.get("images", "")).startswith(ASSUMED):
        height, width = part["image_size"]
        how = {"crop": "center crop", "stretch": "stretched", "letterbox": "letterbox"}[part.get("resize", "crop")]
        other = "crop" if how == "stretched" else "stretch"
        notes["images"] = (
            f"{assumed} {part.get('channel_order', 'RGB')} / 255, mean {_short(part['mean'])}, "
            f"std {_short(part['std'])}, {how} to {height}x{width}; "
            f"set with --set data.mean=[...] --set data.std=[...] --set data.resize={other}"
        )
    if "annotations" in part:
        notes["samples"] = f"images below {part['path']}, with {'masks' if part['annotations'] == 'masks' else 'boxes'}"


def _short(values: list[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _image_labels(data: Path, names: tuple[str, ...], trial: TrialRun, notes: dict[str, str]) -> dict[str, Any]:
    """Return whether the folders are the model's classes, and the names of the classes."""
    folders = [child for child in data.iterdir() if child.is_dir() and is_visible(child.name)]
    classes = trial.scores.shape[1] if trial.scores else 2 if trial.one_number else None
    if not folders or classes is None:
        notes["samples"] = f"images below {data}, without labels; 30 % calibrate, 70 % test"
        return {"labelled": False}
    subfolders = [printable_name(name) for name in index_directory(data).classes]
    if names and len(names) != classes:
        raise ConfigError(f"--labels: {len(names)} labels, but the model has scores for {classes} classes")
    unknown = [name for name in subfolders if names and name not in names]
    if unknown:
        raise ConfigError(f"--data {data}: the folder {unknown[0]!r} is not among the labels of --labels")
    if not names and len(subfolders) != classes:
        notes["samples"] = (
            f"images below {data}; its {len(subfolders)} folders are not the model's {classes} classes, so labels are "
            "ignored: name all classes with --labels FILE"
        )
        return {"labelled": False}
    parts = " (its own splits)" if any(folder.name in SPLITS for folder in folders) else "; 30 % calibrate, 70 % test"
    order = "as in --labels" if names else "ASSUMED to be the folders' names, sorted; set with --labels FILE"
    notes["samples"] = f"images below {data}{parts}; class indices {order}"
    return {"labels": list(names)} if names else {}
