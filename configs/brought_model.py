"""Infer the configuration of a run from a model file and its data."""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from configs.loader import presets
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import TensorSpec
from gauntlet.datasets.directory_index import index_directory, printable_name
from gauntlet.datasets.splits import SPLITS
from gauntlet.inspection.trial_run import Shapes, TrialRun, try_model
from gauntlet.onnx_model.graph import read_untrusted_graph, required_inputs

KIND_OF_SUFFIX = {
    ".onnx": "onnx",
    ".keras": "keras-model",
    ".h5": "keras-model",
    ".skops": "sklearn-model",
}
"""Suffix of a model file -> kind of `train`. A folder with a `saved_model.pb` is a `saved-model`."""
PYTORCH = (".pt", ".pth", ".pt2", ".safetensors")
LAYOUTS = {"NCHW": 1, "NHWC": 3}
"""Layout of a batch of images -> axis of the channels."""
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
GRAY = {"mean": [0.5], "std": [0.5]}
RANDOM_SAMPLES = 96
FRACTIONS = {"validation": 0, "calibration": 0.3, "test": 0.7}
REPAIR_BUDGET_S = 10
"""A recipe's repair is given less time than by default, because `auto` tries several recipes."""


@dataclass(frozen=True)
class InferredConfig:
    """The values of a configuration file, and what to tell the user about them."""

    values: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)
    """Subject -> what was found or assumed."""


def is_model(source: str) -> bool:
    """Return whether the argument of `gauntlet run` names a model instead of a configuration."""
    path = Path(source)
    return path.suffix.lower() in (*KIND_OF_SUFFIX, *PYTORCH) or (path.is_dir() and source not in presets())


def infer_config(model: Path, data: Path | None, labels: Path | None, shapes: Shapes) -> InferredConfig:
    """Return the configuration for a model, with random samples where there is no data.

    Args:
        model: a file of a kind in `KIND_OF_SUFFIX`, or the folder of a SavedModel.
        data: an `.npz` file or a folder of them, with inputs by name; or a folder of images.
        labels: a text file with the name of one class a line, in the order of the class indices.
        shapes: the shape of one sample by input, where the model leaves it open.

    Raises:
        ConfigError: when a file is missing or of another kind, or the model leaves a shape open.
    """
    kind, names = kind_of(model), read_labels(labels)
    values: dict[str, Any] = {"name": run_name(model), "train": {"kind": kind, "model": str(model.resolve())}}
    notes: dict[str, str] = {}
    if kind == "onnx":
        values |= _for_onnx(model, data, names, shapes, notes)
    else:
        if shapes:
            raise ConfigError(f"--shape is for ONNX files; for {model.name}, give samples with --data FILE.npz")
        values |= {"data": _arrays(_arrays_path(model, data), names, notes)}
    values |= {
        "optimize": [{"kind": "chain"}, {"kind": "ort", "level": "extended"}],
        "quantize": "auto",
        "benchmark": {"deploy_targets": "auto"},
        "repair": {"budget_s": REPAIR_BUDGET_S},
        # A model from outside is the reference, however accurate it is.
        "evaluate": {"min_accuracy": 0, "min_recall": 0, "max_generalization_gap": 1},
    }
    return InferredConfig(values, notes)


def kind_of(model: Path) -> str:
    """Return the kind of `train` for a model; raise `ConfigError` for other files."""
    if not model.exists():
        raise ConfigError(f"{model}: no such file")
    if model.is_dir():
        if not any((model / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
            raise ConfigError(f"{model}: a folder without saved_model.pb; expected a model file or a SavedModel folder")
        return "saved-model"
    suffix = model.suffix.lower()
    if suffix in PYTORCH:
        raise ConfigError(
            f"{model}: a PyTorch file needs the code of its network. Fix: export it (torch.onnx.export) and run the "
            ".onnx file, or write a configuration with train.kind: torch-model, which names the code and the weights"
        )
    zipped = suffix in (".keras", ".skops")
    if zipped and not zipfile.is_zipfile(model):
        raise ConfigError(f"{model}: not a {suffix} file, which is a zip archive")
    return KIND_OF_SUFFIX[suffix]


def run_name(model: Path) -> str:
    """Return a file's name as the name of a run: lower-case letters, digits and dashes."""
    stem = model.resolve().name if model.is_dir() else model.stem
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "model"


def read_labels(path: Path | None) -> tuple[str, ...]:
    """Return the lines of a text file; none without a file. Raise `ConfigError` when it is not one label a line."""
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--labels {path}: not a readable text file ({error}); expected one label a line") from error
    labels = tuple(line.strip() for line in lines if line.strip())
    if len(labels) < 2 or len(set(labels)) < len(labels):
        found = "fewer than two labels" if len(labels) < 2 else "a label twice"
        raise ConfigError(f"--labels {path}: {found}; expected one label a line, in the order of the class indices")
    return labels


def _for_onnx(
    model: Path, data: Path | None, names: tuple[str, ...], shapes: Shapes, notes: dict[str, str]
) -> dict[str, Any]:
    """Return the parts of the configuration that depend on an ONNX model's inputs and outputs."""
    arrays = None if data is None else _read_arrays(data)
    if data is not None and arrays is not None:
        wanted = _input_names(model)
        _require_inputs(data, arrays, wanted)
        shapes = shapes or {name: arrays[name].shape[1:] for name in wanted}
    trial = try_model(model, shapes)
    notes["opset"] = str(trial.opset)
    notes |= {f"input {spec.name}": describe(spec) for spec in trial.inputs}
    notes |= {f"output {spec.name}": describe(spec) for spec in trial.outputs}
    if trial.no_batch_axis:
        notes["batch"] = f"one sample a call: {trial.reason or 'the shapes given are those of whole inputs'}"
    if data is None:
        part = _random(model, trial, notes)
    elif arrays is not None:
        part = _arrays(data, names, notes)
    else:
        part = _images(data, names, trial, notes)
    values: dict[str, Any] = {"data": part}
    labelled = part.get("labelled", True) if part["kind"] == "image-folder" else bool(arrays and "labels" in arrays)
    if labelled and trial.scores:
        notes["problem"] = f"classification, {trial.scores.shape[1]} classes"
    else:
        notes["problem"] = "arrays: each output is compared with the original's, number by number"
    if trial.scores is None:  # the largest value of a tensor of boxes or pixels names no class
        values["accuracy"] = {"min_top1_agreement": 0}
    return values


def describe(spec: TensorSpec) -> str:
    """Return type and shape as text: `float32 [batch, 3, 224, 224]`."""
    return f"{spec.dtype} [{', '.join(map(str, spec.shape))}]"


def _random(model: Path, trial: TrialRun, notes: dict[str, str]) -> dict[str, Any]:
    notes["samples"] = f"{RANDOM_SAMPLES} random ones: noise. Accuracy and ranges may differ; bring real ones: --data"
    part: dict[str, Any] = {"kind": "synthetic", "model": str(model.resolve()), "samples": RANDOM_SAMPLES}
    if trial.dynamic_axes:
        part["dynamic_axes"] = trial.dynamic_axes
    return part | ({"no_batch_axis": True} if trial.no_batch_axis else {})


def _arrays(path: Path, names: tuple[str, ...], notes: dict[str, str]) -> dict[str, Any]:
    arrays = dict(_read_arrays(path) or {})
    count = len(next(iter(arrays.values()), ()))
    labelled = arrays.pop("labels", None) is not None
    notes["samples"] = f"{count} in {path}, {'with' if labelled else 'without'} labels; 30 % calibrate, 70 % test"
    part: dict[str, Any] = {"kind": "arrays", "path": str(path.resolve()), "split_fractions": FRACTIONS}
    layouts = [layout for array in arrays.values() if (layout := _layout(array.shape))]
    return part | {"layout": next(iter(layouts), "none")} | ({"labels": list(names)} if names else {})


def _arrays_path(model: Path, data: Path | None) -> Path:
    if data is None or _read_arrays(data) is None:
        given = "it" if data is None else f"{data} is no .npz file; it"
        raise ConfigError(
            f"{model}: {given} needs samples as arrays. Fix: --data FILE.npz, one array per input by name"
        )
    return data


def _read_arrays(data: Path) -> Mapping[str, Any] | None:
    """Return the arrays of an .npz file, or of the first in a folder; None for a folder without any."""
    if not data.exists():
        raise ConfigError(f"--data {data}: no such file or folder")
    files = sorted(data.glob("*.npz")) if data.is_dir() else [data]
    if not files:
        return None
    if files[0].suffix != ".npz":
        raise ConfigError(f"--data {data}: expected an .npz file of inputs by name, or a folder of images")
    try:
        with np.load(files[0], allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged file fails in many ways
        raise ConfigError(f"--data {files[0]}: not an .npz file of plain arrays ({error})") from error
    if any(array.ndim == 0 for array in arrays.values()):
        raise ConfigError(f"--data {files[0]}: every array needs the samples as its first axis")
    return arrays


def _input_names(model: Path) -> list[str]:
    try:
        return [value.name for value in required_inputs(read_untrusted_graph(model).graph)]
    except StageError as error:
        raise ConfigError(str(error)) from error


def _require_inputs(data: Path, arrays: Mapping[str, Any], wanted: list[str]) -> None:
    missing = [name for name in wanted if name not in arrays]
    if missing:
        found = ", ".join(arrays) or "none"
        raise ConfigError(
            f"--data {data}: no array {missing[0]!r}, found: {found}. Fix: name the arrays as the inputs: {wanted}"
        )


def _layout(shape: tuple[int | str, ...]) -> str | None:
    """Return the layout of a batch of images: where 1 or 3 channels are; None for another shape."""
    if len(shape) != 4:
        return None
    return next((layout for layout, axis in LAYOUTS.items() if shape[axis] in (1, 3)), None)


def _images(data: Path, names: tuple[str, ...], trial: TrialRun, notes: dict[str, str]) -> dict[str, Any]:
    """Return the part `data` for a folder of images, with the preprocessing that is known or assumed."""
    spec = trial.inputs[0]
    layout = trial.layout if trial.layout != "none" else _layout(spec.shape)
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
        part |= {"mean": list(how.mean), "std": list(how.std), "resize": how.resize}
        notes["images"] = "preprocessed as the model's own signature says"
    else:
        part |= IMAGENET if spec.shape[channels] == 3 else GRAY
        notes["images"] = (
            f"ASSUMED: RGB / 255, mean {part['mean']}, std {part['std']}, center crop to {size[0]}x{size[1]}; "
            "set with --set data.mean=[...] --set data.std=[...] --set data.resize=stretch"
        )
    return part | _image_labels(data, names, trial, notes)


def _image_labels(data: Path, names: tuple[str, ...], trial: TrialRun, notes: dict[str, str]) -> dict[str, Any]:
    """Return whether the folders are the model's classes, and the names of the classes."""
    folders = [child for child in data.iterdir() if child.is_dir() and not child.name.startswith(".")]
    classes = trial.scores.shape[1] if trial.scores else None
    if not folders or classes is None:
        notes["samples"] = f"images below {data}, without labels; 30 % calibrate, 70 % test"
        return {"labelled": False}
    found = [printable_name(name) for name in index_directory(data).classes]
    if names and len(names) != classes:
        raise ConfigError(f"--labels: {len(names)} labels, but the model has scores for {classes} classes")
    unknown = [name for name in found if names and name not in names]
    if unknown:
        raise ConfigError(f"--data {data}: the folder {unknown[0]!r} is not among the labels of --labels")
    if not names and len(found) != classes:
        notes["samples"] = (
            f"images below {data}; its {len(found)} folders are not the model's {classes} classes, so labels are "
            "ignored: name all classes with --labels FILE"
        )
        return {"labelled": False}
    parts = " (its own splits)" if any(folder.name in SPLITS for folder in folders) else "; 30 % calibrate, 70 % test"
    order = "as in --labels" if names else "ASSUMED to be the folders' names, sorted"
    notes["samples"] = f"images below {data}{parts}; class indices {order}"
    return {"labels": list(names)} if names else {}
