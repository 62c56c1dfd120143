"""Infer the configuration of a run from a model file, or a JAX function, and its data."""

import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from configs.brought_data import ASSUMED, data_part, describe, describe_images, first_layout, read_arrays
from configs.brought_problem import BroughtModel, infer_meaning
from configs.frameworks import all_frameworks, suffixes, trainings
from configs.loader import presets
from configs.required_packages import require_packages_of
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.kinds import kinds, required
from gauntlet.core.signature import Task
from gauntlet.datasets.splits import array_name, input_name, is_truth
from gauntlet.datasets.splitting import GROUPS, TIMES
from gauntlet.frameworks.trial_run import TRIED, Shapes, TrialRun, model_outputs, try_model
from gauntlet.onnx_model.graph import class_names, read_untrusted_graph, required_inputs
from gauntlet.onnx_model.recognition import reads_attention
from tasks.train import TrainConfig
from tasks.train.base import Brought, Training

CONFIGURATIONS = (".yaml", ".yml", ".json", "")
"""Suffixes of configurations; a preset has none."""
MAX_NAME = 100
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
    if path.is_file() and path.suffix.lower() not in CONFIGURATIONS:
        return True  # or no file of a known kind, which `kind_of` refuses
    if path.suffix.lower() in suffixes() or (path.is_dir() and source not in presets()):
        return True
    try:
        return any(framework.recognize(source) for framework in all_frameworks())
    except ConfigError:  # it is a framework's, which `kind_of` refuses
        return True


def infer_config(
    model: Path,
    data: Path | None,
    labels: Path | None,
    shapes: Shapes,
    parameters: Path | None = None,
    *,
    task: Task | None = None,
    trust: bool = False,
    store: Store = NOTHING_STORED,
    group: str | None = None,
    threshold: float | None = None,
    further: Sequence[Shapes] = (),
) -> InferredConfig:
    """Return the configuration for a model, with random samples where there is no data.

    Args:
        model: a file, a folder, or `FILE.py:FUNCTION`, of ONNX or of a framework that is there.
        data: an `.npz` file or a folder of them, with inputs by name; or a folder of images.
        labels: a text file with the name of one class a line, in the order of the class indices.
        shapes: the shape of one sample by input, where the model leaves it open.
        parameters: of a JAX function; see `JaxModel`.
        task: what the outputs mean; by default it is inferred.
        trust: read a file that may run code.
        store: the home's; a file in it has been trusted before.
        group: of images, the pattern whose group in a path stays in one split.
        threshold: probability from which on the second of two classes is predicted.
        further: shapes as `shapes`, of further sizes. With arrays as data, `shapes` are further ones, too.

    Raises:
        ConfigError: when a file is missing, of another kind or not trusted, or the model leaves a shape open.
    """
    kind, names = kind_of(model), read_labels(labels)
    train = trainings()[kind].values(str(model), parameters, trust=trust)
    arrays = None if data is None else read_arrays(data)
    notes: dict[str, str] = {}
    if arrays is not None and shapes:
        further, shapes = (shapes, *further), {}
    if kind == "onnx":
        brought = _try_onnx(model, data, arrays, shapes)
        names = names or class_names(brought.graph)
    else:
        brought = _try_framework(model, train, arrays, shapes, store, notes)
    trial = brought.trial
    notes |= _described(trial, has_arrays=arrays is not None)
    if trial.states:
        train["states"] = [list(pair) for pair in trial.states]
    part = data_part(data, arrays, names, trial, notes, model if kind == "onnx" else None)
    _add_options(part, group, threshold)
    if further:
        inputs = {input_name(name): array for name, array in (arrays or {}).items() if not is_truth(name)}
        base = shapes or {name: array.shape[1:] for name, array in inputs.items()}
        required("sizes", "named", "--shape, for further sizes")(train, notes, trial, base, further)
    values: dict[str, Any] = {"name": run_name(model), "train": train, "data": part}
    notes["problem"] = infer_meaning(brought, values, arrays, names, task)
    describe_images(part, notes)
    if ASSUMED in notes.get("images", ""):
        notes["images"] += _what_changes(brought, part, train.get("primary_output"))
    return InferredConfig(values | _search(model if kind == "onnx" else None), notes)


def _search(model: Path | None) -> dict[str, Any]:
    """Return what is tried with every model, and the fusions for an ONNX file with attention."""
    fuses = model is not None and "transformers" in kinds("pass") and reads_attention(model)
    fusions = [{"kind": "transformers"}] if fuses else []
    return {
        "optimize": [{"kind": "chain"}, {"kind": "ort", "level": "extended"}, *fusions],
        "quantize": "auto",
        "benchmark": {"deploy_targets": "auto"},
        # A model from outside is the reference, however accurate it is.
        "evaluate": {"min_accuracy": 0, "min_score": None, "min_recall": 0, "max_generalization_gap": 1},
    }


def _add_options(part: dict[str, Any], group: str | None, threshold: float | None) -> None:
    """Add what the user says of the samples to the part `data`; raise `ConfigError` where they are of another kind."""
    if group and part["kind"] == "image-folder":
        try:
            re.compile(group)
        except re.error as error:
            raise ConfigError(f"--group {group}: no regular expression: {error}") from error
        part["group"] = group
    if threshold is not None:
        if part["kind"] == "synthetic" or not part.get("labelled", True) or "annotations" in part:
            raise ConfigError("--threshold needs samples of two classes, with --data")
        part |= {"threshold": threshold, "task": "classification"}


def _what_changes(brought: BroughtModel, part: dict[str, Any], primary: str | None) -> str:
    """Return what another preprocessing of images would change; nothing of models that are no classifiers."""
    task = part.get("task", "classification" if part.get("labelled", True) else None)
    scores = primary or (brought.trial.scores.name if brought.trial.scores else None)
    if task != "classification" or "annotations" in part or scores is None:
        return ""
    return "".join(change(part, brought.predict, scores) for change in kinds("assumed").values())


def kind_of(model: Path) -> str:
    """Return the kind of `train` for a model; raise `ConfigError` for other files."""
    for framework in all_frameworks():
        if kind := framework.recognize(str(model)):
            return kind
    if not model.exists():
        raise ConfigError(f"{model}: no such file")
    known, suffix = suffixes(), model.suffix.lower()
    if model.is_dir() or suffix not in known:
        what = "a folder" if model.is_dir() else "a file"
        raise ConfigError(f"{model}: {what} of no known kind; expected one that ends in {', '.join(known)}")
    if any(suffix in framework.archives for framework in all_frameworks()) and not zipfile.is_zipfile(model):
        fix = "Fix: copy the whole file, or save the model again"
        raise ConfigError(f"{model}: not a {suffix} file, which is a zip archive. {fix}")
    return known[suffix]


def run_name(model: Path) -> str:
    """Return what a model is called as the name of a run: lower-case letters, digits and dashes.

    A folder's name, which has 255 characters at most, has more than this.
    """
    name = re.sub(r"[^a-z0-9]+", "-", trainings()[kind_of(model)].title(str(model)).lower())
    return name[:MAX_NAME].strip("-") or "model"


def read_labels(path: Path | None) -> tuple[str, ...]:
    """Return the lines of a text file; none without a file. Raise `ConfigError` when it is not one label a line."""
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--labels {path}: not a readable text file ({error}); expected one label a line") from error
    labels = tuple(line.strip() for line in lines if line.strip())
    if len(labels) < 2 or len(set(labels)) < len(labels):
        fault = "fewer than two labels" if len(labels) < 2 else "a label twice"
        raise ConfigError(f"--labels {path}: {fault}; expected one label a line, in the order of the class indices")
    return labels


def _try_onnx(model: Path, data: Path | None, arrays: NamedArrays | None, shapes: Shapes) -> BroughtModel:
    texts: NamedArrays | None = None
    if data is not None and arrays is not None:
        names = input_names(model)
        _require_inputs(data, arrays, [*map(array_name, names)])
        some = {name: arrays[array_name(name)][:TRIED] for name in names}
        shapes = shapes or {name: array.shape[1:] for name, array in some.items()}
        texts = some if any(array.dtype.kind == "U" for array in some.values()) else None
    trial = try_model(model, shapes, texts)
    return BroughtModel(trial, partial(model_outputs, model), read_untrusted_graph(model).graph)


def _try_framework(
    model: Path, train: dict[str, Any], arrays: NamedArrays | None, shapes: Shapes, store: Store, notes: dict[str, str]
) -> BroughtModel:
    """Load a framework's model in this process, as the stage `train` will, and run it on a few samples."""
    config = TypeAdapter[Training](TrainConfig).validate_python(train)
    if not isinstance(config, Brought):
        raise ConfigError(f"{model}: train.kind {config.kind} takes no model; write a configuration that names it")
    require_packages_of(str(model), "train", config)
    beside = (GROUPS, TIMES, *filter(is_truth, arrays or ()))
    samples = None if arrays is None else {input_name(n): array for n, array in arrays.items() if n not in beside}
    layout = first_layout(array.shape for array in (samples or {}).values())

    def converted(samples: NamedArrays) -> NamedArrays:
        return config.as_taken(samples, layout)

    try:
        loaded = config.load_model(store)
        notes["model"] = f"{loaded.framework}, {loaded.architecture}, {loaded.parameters:,} parameters"
        trial = loaded.try_on(shapes, converted(samples) if samples else None, layout)
    except (ConfigError, StageError) as error:
        text = str(error) if str(error).startswith(str(model)) else f"{model}: {error}"
        fix = "" if "Fix:" in text else ". Fix: give samples that it takes, with --data FILE.npz"
        raise ConfigError(f"{text}{fix}") from error
    return BroughtModel(trial, lambda samples: loaded.outputs(trial.inputs, converted(samples)))


def _described(trial: TrialRun, *, has_arrays: bool) -> dict[str, str]:
    notes = {"opset": str(trial.opset)} if trial.opset else {}
    notes |= {f"input {spec.name}": describe(spec) for spec in trial.inputs}
    notes |= {f"output {spec.name}": describe(spec) for spec in trial.outputs}
    if has_arrays and trial.reason:
        whole = "for calls of one sample, give every array a second axis of length 1"
        notes["batch"] = f"samples run in batches, although {trial.reason}; {whole}"
    elif trial.no_batch_axis:
        notes["batch"] = f"one sample a call: {trial.reason or 'the shapes given are those of whole inputs'}"
    if trial.states:
        pairs = ", ".join(f"{name} -> {output}" for name, output in trial.states)
        notes["states"] = f"{pairs}, judged over sequences in which each model feeds itself; none: train.states=[]"
    return notes


def input_names(model: Path) -> list[str]:
    """Return the inputs that an ONNX file needs; raise `ConfigError` where it cannot be read."""
    try:
        return [value.name for value in required_inputs(read_untrusted_graph(model).graph)]
    except StageError as error:
        raise ConfigError(str(error)) from error


def _require_inputs(data: Path, arrays: Mapping[str, Any], names: list[str]) -> None:
    missing = [name for name in names if name not in arrays]
    if missing:
        found, fix = ", ".join(arrays) or "none", f"Fix: name the arrays as the inputs: {names}"
        raise ConfigError(f"--data {data}: no array {missing[0]!r}, found: {found}. {fix}")
