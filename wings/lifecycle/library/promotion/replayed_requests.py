"""Requests to replay: images or arrays, with their labels where they are known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.arrays import Array, NamedArrays, fits_shape
from gauntlet.core.errors import ConfigError, PipelineError, StageError
from gauntlet.core.signature import Signature
from gauntlet.datasets.splits import Split, read_npz_split
from gauntlet.datasets.truth import class_indices, label_names
from gauntlet.images.preprocessing import fitting_inputs

CLASS_TASKS = ("classification", "arrays")
"""Tasks whose labels are one class per request."""
MAX_BYTES = 1 << 30
"""Most bytes of requests that are replayed; of more, every n-th is taken."""


class Requests(Protocol):
    """Recorded requests."""

    @property
    def source(self) -> str:
        """Where they come from, for people."""

    @property
    def truth(self) -> Array | None:
        """The truth of each request, or None where it is unknown.

        Of a classifier, the name of the class, shape (n,); of another problem, what `Problem.score` takes.
        """

    def inputs_for(self, bundle: Bundle) -> NamedArrays:
        """Return the inputs of a bundle's model by name, shape (n, ...); `ConfigError` when they do not fit it."""


@dataclass(frozen=True)
class ArrayRequests:
    """Requests as inputs of a model, arrays of shape (n, ...) by name."""

    source: str
    arrays: NamedArrays
    truth: Array | None = None

    def inputs_for(self, bundle: Bundle) -> NamedArrays:
        """Return the arrays; `ConfigError` when the model has other inputs."""
        arrays = fitting_inputs(self.arrays, bundle.contract.signature)
        for spec in bundle.contract.signature.inputs:
            array = arrays.get(spec.name)
            if array is None or not fits_shape(array.shape, spec.shape, skip=1):
                offered = ", ".join(f"{name} {list(array.shape[1:])}" for name, array in self.arrays.items())
                expected = f"{spec.name} {list(spec.shape[1:])}"
                raise ConfigError(
                    f"{self.source}: requests of {offered}, but {bundle.contract.candidate} of "
                    f"{bundle.contract.run_id} takes {expected}. Fix: replay images, which each model's own "
                    "preprocessing fits to it: --requests FOLDER"
                )
        return {spec.name: arrays[spec.name] for spec in bundle.contract.signature.inputs}


@dataclass(frozen=True)
class ImageRequests:
    """Requests as image files, which each bundle preprocesses as its contract says."""

    source: str
    files: tuple[Path, ...]
    truth: Array | None = None

    def inputs_for(self, bundle: Bundle) -> NamedArrays:
        """Decode and preprocess the images."""
        try:
            return Predictor(bundle, threads=1).inputs_of(self.files)
        except PipelineError as error:
            raise ConfigError(f"--requests {self.source}: {error}. Fix: remove or replace the file") from error


def recorded_requests(path: Path, signature: Signature, option: str = "--requests") -> Requests:
    """Return the requests in an `.npz` file or in a folder of images.

    An `.npz` file has one array per input, and optionally `labels`: indices of the signature's labels, or what the
    problem's metrics compare with (masks, texts, numbers, boxes; see `gauntlet.datasets.truth`). A folder has images,
    or one folder of images per label.

    Raises:
        ConfigError: when it is neither, or the labels do not fit the problem.
    """
    if path.is_dir():
        return _image_requests(path, signature, option)
    if not path.is_file():
        raise ConfigError(f"{option} {path}: no such file or folder; give an .npz file, or a folder of images")
    try:
        return split_requests(str(path), read_npz_split(path), signature)
    except PipelineError as error:
        raise ConfigError(f"{option} {error}") from error


def split_requests(source: str, split: Split, signature: Signature) -> ArrayRequests:
    """Return the samples of a split as requests: all of them, or every n-th where they take over `MAX_BYTES`."""
    size = sum(array.nbytes for array in split.take(slice(0, 1)).values())
    chosen = np.arange(0, len(split), 1 + len(split) * size // MAX_BYTES)
    truth = None if split.labels is None else _truth(source, split.labels[chosen], signature)
    return ArrayRequests(source, split.take(chosen), truth)


def _truth(source: str, labels: Array, signature: Signature) -> Array:
    """Return labels as `Requests.truth` has them."""
    names = signature.labels
    if signature.task not in CLASS_TASKS:
        try:
            label_names(signature.task, names, {Path(source): labels})
        except StageError as error:
            raise ConfigError(str(error)) from error
        return labels
    classes = class_indices(labels)
    if classes is None:
        raise ConfigError(f"{source}: labels are {labels.dtype}{list(labels.shape)}; expected one integer per sample")
    indices = classes.tolist()
    if names and (wrong := [i for i in indices if not 0 <= i < len(names)]):
        raise ConfigError(f"{source}: labels has {wrong[0]}; allowed: 0 to {len(names) - 1}, one of {names}")
    return np.array([names[i] if names else str(i) for i in indices], np.str_)


def golden_requests(bundle: Bundle) -> ArrayRequests:
    """Return the golden samples of a bundle as requests; their right labels are not known."""
    return ArrayRequests("the bundle's golden samples", bundle.golden().inputs)


def _image_requests(root: Path, signature: Signature, option: str) -> ImageRequests:
    files = sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))
    if not files:
        raise ConfigError(f"{option} {root}: no files in it; expected images, or one folder of images per label")
    depths = {len(file.relative_to(root).parts) for file in files}
    if depths == {1}:
        return ImageRequests(str(root), tuple(files))
    if depths != {2}:
        raise ConfigError(f"{option} {root}: expected <image>, or <label>/<image>, for all files; found both")
    if signature.task not in (*CLASS_TASKS, "embedding"):
        fix = "give an .npz file with `labels`, or a folder of images without folders in it"
        raise ConfigError(
            f"{option} {root}: folders tell classes, but the model's task is {signature.task}. Fix: {fix}"
        )
    truth = [file.parent.name for file in files]
    if unknown := sorted(set(truth) - set(signature.labels)):
        known = ", ".join(signature.labels) or "none"
        raise ConfigError(f"{option} {root}: folder {unknown[0]!r} is not one of the model's labels: {known}")
    return ImageRequests(str(root), tuple(files), np.array(truth, np.str_))
