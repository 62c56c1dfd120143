"""What changes where the preprocessing of images that a run assumes is not the model's own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.datasets.directory_index import index_directory, index_images, printable_name
from gauntlet.datasets.image_files import scan
from gauntlet.datasets.image_folder import ImageFolder, file_split
from gauntlet.datasets.normalized_images import IMAGENET
from gauntlet.metrics.error_metrics import predicted_classes

IMAGES, CLEARLY = 16, 5
"""Images that are tried, and how many more must be right for another preprocessing to be proposed."""
CAFFE = {"mean": [103.939 / 255, 116.779 / 255, 123.68 / 255], "std": [1 / 255] * 3}
ALTERNATIVES: dict[str, dict[str, Any]] = {
    "ImageNet's mean and std": {name: [*values] for name, values in IMAGENET.items()},
    "values from 0 to 1": {"mean": [0.0], "std": [1.0]},
    "values from -1 to 1": {"mean": [0.5], "std": [0.5]},
    "values from 0 to 255": {"mean": [0.0], "std": [1 / 255]},
    "BGR from 0 to 255 less the mean (Caffe)": CAFFE,
}
"""What other networks expect, as `data` of a configuration; one value stands for every channel."""


def what_changes(part: dict[str, Any], predict: Callable[[NamedArrays], NamedArrays], scores: str) -> str:
    """Return how many images of a folder get another class, or are right, where they are prepared in another way.

    Args:
        part: `data` of the configuration, with the assumed preprocessing.
        predict: from inputs, shape (n, ...), to the outputs by name.
        scores: the output with the scores of the classes, shape (n, classes).
    """
    ways = {"as assumed": part} | _others(part)
    folders = {name: ImageFolder.model_validate(way) for name, way in ways.items()}
    try:
        samples, labels = _samples(folders)
        predicted = predicted_classes(predict(samples)[scores]) if samples else None
    except StageError:  # the stages say more about it
        return ""
    if predicted is None:
        return ""
    classes = predicted.reshape(len(folders), -1)
    right = classes == (classes[0] if labels is None else labels)
    assumed, *others = right.sum(axis=1).tolist()
    chosen, images = others.index(min(others) if labels is None else max(others)), right.shape[1]
    name, way = list(ways.items())[1 + chosen]
    if labels is None:
        return f". With {name} instead, {images - others[chosen]} of {images} images get another class"
    fix = f"--set data.mean={_short(way['mean'])} --set data.std={_short(way['std'])}"
    if way.get("channel_order", "RGB") != part.get("channel_order", "RGB"):
        fix += f" --set data.channel_order={way['channel_order']}"
    hint = f". Fix: {fix}" if others[chosen] >= assumed + CLEARLY else ""
    return f". {assumed} of {images} images are right, and {others[chosen]} with {name}{hint}"


def _others(part: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return `part` with each preprocessing that the channels allow, but for the one that it has."""
    channels, choices = len(part["mean"]), {}
    for name, way in ALTERNATIVES.items():
        if len(way["mean"]) in (1, channels):
            wide = {key: way[key] * (channels if len(way[key]) == 1 else 1) for key in ("mean", "std")}
            order = {"channel_order": "BGR" if way is CAFFE else "RGB"} if channels == 3 else {}
            same = np.allclose([wide["mean"], wide["std"]], [part["mean"], part["std"]], atol=1e-3)
            if not same or order.get("channel_order", "RGB") != part.get("channel_order", "RGB"):
                choices[name] = part | wide | order
    return choices


def _short(values: list[float]) -> str:
    return f"[{','.join(f'{value:.6g}' for value in values)}]"


def _samples(folders: dict[str, ImageFolder]) -> tuple[NamedArrays, np.ndarray | None]:
    """Return the inputs of some images in each way, one way after the other, and their classes where folders are."""
    first = next(iter(folders.values()))
    index = index_directory(first.path) if first.labelled else index_images(first.path)
    names = [*map(printable_name, index.classes)]
    order = [*(first.labels or names)]
    files = np.random.default_rng(0).permutation(len(index.files))[:IMAGES]
    chosen = replace(index, files=tuple(index.files[number] for number in files))
    images, _ = scan(first.path.resolve(), chosen, len(first.mean))
    if not images:
        return {}, None
    parts = [file_split(first.path.resolve(), images, way.transform).take(slice(None)) for way in folders.values()]
    labels = np.array([order.index(names[image.label]) for image in images]) if first.labelled else None
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, labels
