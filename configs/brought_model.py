"""Infer the configuration of a run from a model file, or a JAX function, and its data."""

import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from configs.brought_data import data_part, describe, first_layout, read_arrays
from configs.loader import presets
from configs.recipe_expansion import reads_attention
from configs.required_packages import require_packages_of
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.frameworks.keras.model import nhwc
from gauntlet.frameworks.torch.program import is_scripted
from gauntlet.inspection.trial_run import Shapes, TrialRun, try_framework_model, try_model
from gauntlet.onnx_model.graph import read_untrusted_graph, required_inputs
from tasks.train import Brought

KIND_OF_SUFFIX = {
    ".onnx": "onnx",
    ".pt2": "exported-program",
    ".torchscript": "torchscript",
    ".keras": "keras-model",
    ".h5": "keras-model",
    ".skops": "sklearn-model",
}
"""Suffix of a model file -> kind of `train`. A folder with a `saved_model.pb` is a `saved-model`."""
WEIGHTS = (".pt", ".pth", ".safetensors")
"""Suffixes of PyTorch's files that may hold weights alone; a TorchScript program may have the first two, too."""
ZIPPED = (".keras", ".skops", ".pt2", ".torchscript")
FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<function>[A-Za-z_]\w*)")
"""A JAX function: `folder/nets.py:predict`."""
NHWC_KINDS = ("keras-model", "saved-model")
NOTHING_STORED = Store(Path(os.devnull))


@dataclass(frozen=True)
class InferredConfig:
    """The values of a configuration file, and what to tell the user about them."""

    values: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)
    """Subject -> what was found or assumed."""


def is_model(source: str) -> bool:
    """Return whether the argument of `gauntlet run` names a model instead of a configuration."""
    path = Path(source)
    known = path.suffix.lower() in (*KIND_OF_SUFFIX, *WEIGHTS) or FUNCTION.fullmatch(source) is not None
    return known or (path.is_dir() and source not in presets())


def infer_config(
    model: Path,
    data: Path | None,
    labels: Path | None,
    shapes: Shapes,
    parameters: Path | None = None,
    *,
    trust: bool = False,
    store: Store = NOTHING_STORED,
) -> InferredConfig:
    """Return the configuration for a model, with random samples where there is no data.

    Args:
        model: a file of a kind in `KIND_OF_SUFFIX`, the folder of a SavedModel, or a `FUNCTION`.
        data: an `.npz` file or a folder of them, with inputs by name; or a folder of images.
        labels: a text file with the name of one class a line, in the order of the class indices.
        shapes: the shape of one sample by input, where the model leaves it open.
        parameters: of a JAX function; see `JaxModel`.
        trust: read a file that may run code.
        store: the home's; a file in it has been trusted before.

    Raises:
        ConfigError: when a file is missing, of another kind or not trusted, or the model leaves a shape open.
    """
    kind, names = kind_of(model), read_labels(labels)
    train = _train_part(kind, model, parameters, trust=trust)
    arrays = None if data is None else read_arrays(data)
    notes: dict[str, str] = {}
    if kind == "onnx":
        trial = _try_onnx(model, data, arrays, shapes)
    else:
        trial = _try_framework(model, train, arrays, shapes, store, notes)
    notes |= _described(trial)
    part = data_part(data, arrays, names, trial, notes, model if kind == "onnx" else None)
    values: dict[str, Any] = {"name": run_name(model), "train": train, "data": part}
    labelled = part.get("labelled", True) if part["kind"] == "image-folder" else bool(arrays and "labels" in arrays)
    if labelled and trial.scores:
        notes["problem"] = f"classification, {trial.scores.shape[1]} classes"
    else:
        notes["problem"] = "arrays: each output is compared with the original's, number by number"
    if trial.scores is None:  # the largest value of a tensor of boxes or pixels names no class
        values["accuracy"] = {"min_top1_agreement": 0}
    fusions = [{"kind": "transformers"}] if kind == "onnx" and reads_attention(model) else []
    values |= {
        "optimize": [{"kind": "chain"}, {"kind": "ort", "level": "extended"}, *fusions],
        "quantize": "auto",
        "benchmark": {"deploy_targets": "auto"},
        # A model from outside is the reference, however accurate it is.
        "evaluate": {"min_accuracy": 0, "min_recall": 0, "max_generalization_gap": 1},
    }
    return InferredConfig(values, notes)


def kind_of(model: Path) -> str:
    """Return the kind of `train` for a model; raise `ConfigError` for other files."""
    if function := FUNCTION.fullmatch(str(model)):
        if not Path(function["file"]).is_file():
            raise ConfigError(f"{model}: {function['file']}: no such file")
        return "jax-model"
    if not model.exists():
        raise ConfigError(f"{model}: no such file")
    if model.is_dir():
        if not any((model / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
            raise ConfigError(f"{model}: a folder without saved_model.pb; expected a model file or a SavedModel folder")
        return "saved-model"
    suffix = model.suffix.lower()
    if suffix in WEIGHTS and not is_scripted(model):
        raise ConfigError(
            f"{model}: not a TorchScript program, and weights alone need the code of their network. Fix: save the "
            "network with torch.export.save or torch.jit.save, export it to ONNX, or write a configuration with "
            "train.kind: torch-model, which names the code and the weights"
        )
    if suffix in ZIPPED and not zipfile.is_zipfile(model):
        raise ConfigError(f"{model}: not a {suffix} file, which is a zip archive")
    return KIND_OF_SUFFIX.get(suffix, "torchscript")


def run_name(model: Path) -> str:
    """Return a file's name as the name of a run: lower-case letters, digits and dashes."""
    function = FUNCTION.fullmatch(str(model))
    stem = model.resolve().name if model.is_dir() else model.stem
    if function:
        stem = f"{Path(function['file']).stem}-{function['function']}"
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


def _train_part(kind: str, model: Path, parameters: Path | None, *, trust: bool) -> dict[str, Any]:
    function = FUNCTION.fullmatch(str(model))
    if parameters is not None and function is None:
        raise ConfigError(f"--parameters is for a JAX function, FILE.py:FUNCTION; {model} holds its own")
    if parameters is not None and not parameters.is_file():
        raise ConfigError(f"--parameters {parameters}: no such file")
    if function is None:
        allowed = {"trust": True} if trust and kind != "onnx" else {}
        return {"kind": kind, "model": str(model.resolve())} | allowed
    file = Path(function["file"]).resolve()
    part = {"kind": kind, "function": f"{file.stem}:{function['function']}", "code_folder": str(file.parent)}
    return part | ({"parameters": str(parameters.resolve())} if parameters else {})


def _try_onnx(model: Path, data: Path | None, arrays: NamedArrays | None, shapes: Shapes) -> TrialRun:
    if data is not None and arrays is not None:
        wanted = _input_names(model)
        _require_inputs(data, arrays, wanted)
        shapes = shapes or {name: arrays[name].shape[1:] for name in wanted}
    return try_model(model, shapes)


def _try_framework(
    model: Path,
    train: dict[str, Any],
    arrays: NamedArrays | None,
    shapes: Shapes,
    store: Store,
    notes: dict[str, str],
) -> TrialRun:
    """Load a framework's model in this process, as the stage `train` will, and run it on a few samples."""
    config: Brought = TypeAdapter(Brought).validate_python(train)
    require_packages_of(str(model), "train", config)
    samples = None if arrays is None else {name: array for name, array in arrays.items() if name != "labels"}
    layout = first_layout(array.shape for array in (samples or {}).values())
    if samples and config.kind in NHWC_KINDS:
        samples = {name: nhwc(array, layout) for name, array in samples.items()}
    try:
        loaded = config.load_model(store)
        notes["model"] = f"{loaded.framework}, {loaded.architecture}, {loaded.parameters:,} parameters"
        return try_framework_model(loaded, shapes, samples, layout)
    except (ConfigError, StageError) as error:
        text = str(error) if str(error).startswith(str(model)) else f"{model}: {error}"
        fix = "" if "Fix:" in text else ". Fix: give samples that it takes, with --data FILE.npz"
        raise ConfigError(f"{text}{fix}") from error


def _described(trial: TrialRun) -> dict[str, str]:
    notes = {} if trial.opset is None else {"opset": str(trial.opset)}
    notes |= {f"input {spec.name}": describe(spec) for spec in trial.inputs}
    notes |= {f"output {spec.name}": describe(spec) for spec in trial.outputs}
    if trial.no_batch_axis:
        notes["batch"] = f"one sample a call: {trial.reason or 'the shapes given are those of whole inputs'}"
    return notes


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
