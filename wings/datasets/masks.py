"""Images with the class of each pixel in a second image: `images/a.jpg` and `masks/a.png`."""

from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import Preprocessing
from gauntlet.datasets.directory_index import DirectoryIndex, index_images
from gauntlet.datasets.image_files import ScannedImage, scan
from gauntlet.datasets.image_folder import ImageFolder, file_split
from gauntlet.datasets.splits import SPLITS, Dataset, SkippedFile, skipped_check, summary
from gauntlet.datasets.splitting import complete_splits
from gauntlet.datasets.truth import IGNORED_PIXEL, plain_masks
from gauntlet.images.preprocessing import preprocess
from gauntlet.problems.output_evidence import InferredProblem
from wings.datasets.annotations import with_truth
from wings.datasets.yolo import IMAGES, class_names, splits_of

MASKS, SUFFIXES = "masks", (".png", ".bmp", ".gif", ".tif", ".tiff")
"""Folder of the masks, and formats that keep each value; JPEG changes classes at their edges."""
MODES = ("1", "L", "P", "RGB")

Mask = npt.NDArray[np.uint8]


def add_masks(part: dict[str, Any], problem: InferredProblem, named: tuple[str, ...]) -> str:
    """Let the masks beside a folder's images, if there are any, judge a segmenter, as `with_truth` does."""
    path = Path(part["path"])
    folders = (*path.glob(MASKS), *path.glob(f"*/{MASKS}"))
    if not any((folder.parent / IMAGES).is_dir() for folder in folders):
        return ""
    try:
        names = class_names(path)
    except StageError as error:
        raise ConfigError(f"--data {error}") from error
    return with_truth(part, problem, named, {"annotations": MASKS}, names, MASKS)


def load_masked(folder: ImageFolder) -> Dataset:
    """Decode every image and its mask once, and split the usable pairs.

    A mask has the size of its image, and a class for each pixel: a gray level, or an index of a palette. Pixels of the
    class 255 do not count, unless all masks are black and white: then white is class 1.

    Raises:
        StageError: without any usable pair, or where a mask has a class without a name.
    """
    if not folder.path.is_dir():
        raise StageError(f"{folder.path}: no such folder. Fix: set data.path to the folder of the dataset")
    root, (images, masks, read, skipped) = folder.path.resolve(), _scan(folder)
    check = skipped_check(skipped, folder.max_skipped, "images and masks")
    if not images:
        raise StageError(f"{folder.path}: no image with a usable mask; {summary(skipped) or 'no image'}")
    truth = plain_masks([np.stack(read)])[0].astype(np.uint8)
    for image, mask in zip(images, truth, strict=True) if folder.resize == "letterbox" else ():
        bars = _fitted(np.zeros((image.height, image.width), np.uint8), folder.transform.how, IGNORED_PIXEL)
        mask[bars == IGNORED_PIXEL] = IGNORED_PIXEL
    labels = folder.labels or class_names(folder.path) or tuple(map(str, range(_highest(truth) + 1)))
    _require_names(masks, truth, labels)
    names, digests = np.array([image.split for image in images]), [image.pixel_digest for image in images]
    indices = complete_splits(names, None, folder.split_fractions, folder.seed, digests, folder.groups(images))
    if "test" not in indices:
        raise StageError(f"{folder.path}: no image is in the split 'test'. Fix: name one for it, or name no splits")
    parts = {
        name: file_split(root, [images[i] for i in indices[name]], folder.transform, truth[indices[name]])
        for name in SPLITS
        if name in indices
    }
    return Dataset(parts, folder.transform.signature(labels).replace(task="segmentation"), (check,), tuple(skipped))


def _scan(folder: ImageFolder) -> tuple[list[ScannedImage], list[str], list[Mask], list[SkippedFile]]:
    """Return the usable images, the files of their masks, the masks as large as inputs, and what is left out."""
    root, skipped, pairs = folder.path.resolve(), list[SkippedFile](), _pairs(folder.path)
    splits = splits_of(pairs)
    for file, mask in pairs.items():
        if mask is None or splits[file] is None:
            lacks = f"no mask {MASKS}/{PurePath(file).stem}.png beside its folder" if mask is None else "in no split"
            skipped.append(SkippedFile(file=file, reason=lacks))
    usable = {file: mask for file, mask in pairs.items() if mask is not None and splits[file] is not None}
    index = DirectoryIndex((), ("",), tuple((splits[file] or "", "", file) for file in usable), ())
    scanned, unusable = scan(root, index, len(folder.mean))
    masks = {image: _mask(root / usable[image.file], image, folder.transform.how) for image in scanned}
    skipped += [
        *unusable,
        *(SkippedFile(file=usable[i.file], reason=m) for i, m in masks.items() if isinstance(m, str)),
    ]
    kept = [(image, usable[image.file], mask) for image, mask in masks.items() if not isinstance(mask, str)]
    images, files, read = (list(part) for part in zip(*kept, strict=True)) if kept else ([], [], [])
    return images, files, read, skipped


def _pairs(path: Path) -> dict[str, str | None]:
    """Return the mask of each image below a folder of images; None where there is none."""
    files = [file for _, _, file in index_images(path).files]
    stems = {str(PurePath(file).with_suffix("")): file for file in files if PurePath(file).suffix.lower() in SUFFIXES}
    pairs = {}
    for file in files:
        parts = PurePath(file).with_suffix("").parts
        if IMAGES in parts[:-1]:
            place = len(parts) - 2 - parts[-2::-1].index(IMAGES)
            stem = str(PurePath(*parts[:place], MASKS, *parts[place + 1 :]))
            pairs[file] = stems.get(stem, stems.get(f"{stem}_mask"))
    return pairs


def _mask(path: Path, image: ScannedImage, how: Preprocessing) -> Mask | str:
    """Return the class of each pixel of an input, shape (height, width), or why the mask cannot be used."""
    try:
        with Image.open(path) as file:
            upright = ImageOps.exif_transpose(file)
            values: Any = np.asarray(upright)
    except Exception as error:  # Pillow's readers raise many types
        return f"damaged: {error or type(error).__name__}"
    if upright.mode not in MODES or (values.ndim == 3 and np.any(np.ptp(values, axis=2))):
        return f"pixels of mode {upright.mode}, in color; expected a class for each pixel: gray levels, or a palette"
    values = values if values.ndim == 2 else values[:, :, 0]
    if values.shape != (image.height, image.width):
        return f"{list(values.shape)} pixels, and its image has {[image.height, image.width]}. Fix: make it as large"
    return _fitted(values.astype(np.uint8), how)


def _fitted(mask: Mask, how: Preprocessing, padding: int = 0) -> Mask:
    """Return a mask as large as an input; no two classes are mixed, and a letterbox's bars are `padding`."""
    plain = {"mean": (0.0,), "std": (1.0,), "scale": 1 / 255, "channel_order": "RGB"}
    nearest = how.replace(interpolation="nearest", padding=padding, **plain)
    levels: Any = 255 * preprocess(mask, nearest, "NHWC")[:, :, 0]
    return np.asarray(np.round(levels), np.uint8)


def _highest(masks: Mask) -> int:
    return int(np.max(masks, initial=0, where=masks != IGNORED_PIXEL))


def _require_names(files: list[str], masks: Mask, labels: tuple[str, ...]) -> None:
    for file, mask in zip(files, masks, strict=True):
        if (highest := _highest(mask)) >= len(labels):
            raise StageError(
                f"{file}: a pixel has class {highest}; allowed: 0 to {len(labels) - 1}, and {IGNORED_PIXEL} for pixels "
                "that do not count. Fix: correct the mask, or name all classes in data.labels"
            )
