"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60 000 RGB images of 32x32 pixels, read by torchvision."""

import hashlib
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import Field, model_validator

from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import Preprocessing
from gauntlet.datasets.image_arrays import ImageArraySplit, ImageTransform
from gauntlet.datasets.normalized_images import NormalizedImages
from gauntlet.datasets.splits import SPLITS, Dataset
from gauntlet.datasets.splitting import Indices, stratified_sample

SIZE = 32
CIFAR100: dict[str, Any] = {"mean": (0.5071, 0.4865, 0.4409), "std": (0.2673, 0.2564, 0.2762)}
UNPACKED = {10: "cifar-10-batches-py", 100: "cifar-100-python"}


class Cifar(NormalizedImages):
    """50 000 training and 10 000 test images, of 10 or 100 classes.

    The test split is the official one; validation and calibration images are taken out of the training images.
    torchvision verifies the authors' MD5 of every file before it unpickles it.
    """

    kind: Literal["cifar"] = "cifar"
    classes: Literal[10, 100] = Field(10, description="which of the two datasets")
    mean: tuple[float, ...] = Field(
        (0.4914, 0.4822, 0.4465), description="per channel (1 or 3); default: of the training images"
    )
    std: tuple[float, ...] = Field(
        (0.2470, 0.2435, 0.2616), description="one per channel; default: of the training images"
    )
    folder: Path = Field(Path("cifar"), description="holds the archive *-python.tar.gz, or its unpacked folder")
    download: bool = Field(False, description="download the archive into the folder if it is missing")
    validation_images: int = Field(5000, ge=10, le=40_000, description="held out of training to select the best epoch")
    calibration_images: int = Field(500, ge=10, le=5000, description="held out of training for quantization ranges")
    train_images: int | None = Field(None, ge=10, description="upper limit, for a quick try; by default all")
    test_images: int | None = Field(None, ge=10, description="upper limit, for a quick try; by default all")
    seed: int = Field(0, ge=0, description="determines which image is in which split")

    @model_validator(mode="before")
    @classmethod
    def _own_statistics(cls, values: Any) -> Any:
        hundred = isinstance(values, dict) and values.get("classes") == 100 and values.get("hog") is None
        return CIFAR100 | values if hundred else values

    @property
    def archive(self) -> str:
        """Name of the authors' archive."""
        return f"cifar-{self.classes}-python.tar.gz"

    @property
    def unpacked(self) -> str:
        """Name of the folder in the archive."""
        return UNPACKED[self.classes]

    @property
    def packages(self) -> dict[str, str]:
        """Packages needed beyond the base installation -> the project extra that installs each."""
        return {"torchvision": "torch"} | super().packages

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input, in pixels."""
        return SIZE, SIZE

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        folder = self.folder / self.unpacked
        return tuple(sorted(folder.iterdir())) if folder.is_dir() else (self.folder / self.archive,)

    def load(self) -> Dataset:
        """Read and split the images; raise StageError if they are missing, damaged, or too few."""
        train, test = self._read()
        pixels = {"train": np.ascontiguousarray(train.data), "test": np.ascontiguousarray(test.data)}
        if len(self.mean) == 1:
            pixels = {name: np.stack([_gray(image) for image in images]) for name, images in pixels.items()}
        labels = {"train": np.array(train.targets, np.int64), "test": np.array(test.targets, np.int64)}
        unique, repeated, copies = _without_copies(pixels["train"], pixels["test"])
        chosen: dict[str, Indices] = {}
        for name, size in {"validation": self.validation_images, "calibration": self.calibration_images}.items():
            unique, chosen[name] = stratified_sample(unique, size, labels["train"], self.seed, name)
        chosen["train"] = self._at_most(self.train_images, np.union1d(unique, repeated), labels["train"])
        chosen["test"] = self._at_most(self.test_images, np.arange(len(pixels["test"])), labels["test"])
        how = Preprocessing(height=SIZE, width=SIZE, scale=1 / 255, mean=self.mean, std=self.std, hog=self.hog)
        transform = ImageTransform(how=how, layout=self.layout)
        splits = {}
        for name in SPLITS:
            part = "test" if name == "test" else "train"
            splits[name] = ImageArraySplit(pixels[part][chosen[name]], labels[part][chosen[name]], transform)
        detail, remedy = "; ".join(copies[:3]), "none needed: copies of test images are excluded from training"
        name, count = "data.duplicates_removed", len(copies)
        check = Check.of(name, count, "==", 0, detail, remedy, unit="images", severity="warning")
        return Dataset(splits, transform.signature(tuple(train.classes)), (check,))

    def _at_most(self, limit: int | None, indices: Indices, labels: Indices) -> Indices:
        if limit is None or limit >= len(indices):
            return indices
        return stratified_sample(indices, limit, labels, self.seed, "a quick try")[1]

    def _read(self) -> tuple[Any, Any]:
        """Return torchvision's training and test set."""
        from torchvision import datasets
        from torchvision.datasets.utils import check_integrity, extract_archive

        dataset = {10: datasets.CIFAR10, 100: datasets.CIFAR100}[self.classes]
        archive, unpacked = self.folder / self.archive, self.folder / self.unpacked
        with TemporaryDirectory() as temporary:
            root, download = self.folder, self.download
            if not unpacked.is_dir() and archive.is_file() and check_integrity(archive, dataset.tgz_md5):
                root, download = Path(temporary), False
                extract_archive(archive, root)
            elif not unpacked.is_dir() and not download:
                raise StageError(
                    f"{archive}: damaged or incomplete: its MD5 is not the original's. "
                    "Fix: copy it again, or delete it and set data.download=true"
                    if archive.is_file()
                    else f"{self.folder.absolute()}: contains neither {archive.name} nor the folder {unpacked.name}. "
                    "Fix: put one of them there, or set data.download=true on a machine with internet access"
                )
            try:
                return dataset(root, train=True, download=download), dataset(root, train=False)
            except (RuntimeError, OSError) as error:
                files = [*dataset.train_list, *dataset.test_list, (dataset.meta["filename"], dataset.meta["md5"])]
                damaged = [name for name, md5 in files if not check_integrity(root / self.unpacked / name, md5)]
                raise StageError(
                    f"{archive}: cannot be downloaded from {dataset.url} ({error}). "
                    "Fix: copy the file from a machine with internet access, or try again"
                    if download
                    else f"{unpacked}: damaged or incomplete: {damaged} are missing or differ from the original (MD5). "
                    f"Fix: delete the folder, then unpack {self.archive} again or set data.download=true"
                ) from error


def _without_copies(train: npt.NDArray[np.uint8], test: npt.NDArray[np.uint8]) -> tuple[Indices, Indices, list[str]]:
    """Find byte-identical images (Barz and Denzler 2020, "Do we train on test data?").

    Returns:
        The training images that occur once, those that occur several times and must stay in one split, and the names of
        those that are also in the test set; they are in neither.
    """
    digests = [hashlib.sha256(image.tobytes()).digest() for image in train]
    test_indices = {hashlib.sha256(image.tobytes()).digest(): index for index, image in enumerate(test)}
    counts = Counter(digests)
    own = np.array([index for index, digest in enumerate(digests) if digest not in test_indices], np.int64)
    once = np.array([counts[digests[index]] == 1 for index in own], bool)
    copies = [
        f"training image {index} is test image {test_indices[digest]}"
        for index, digest in enumerate(digests)
        if digest in test_indices
    ]
    return own[once], own[~once], copies


def _gray(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the luma of an RGB image, shape (height, width, 3), as `decode_image` does: (height, width, 1)."""
    return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]
