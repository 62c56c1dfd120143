"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60 000 colour pictures of 32x32 pixels, as torchvision reads them."""

import hashlib
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check
from gauntlet.core.signature import Preprocessing
from gauntlet.datasets.image_arrays import ImageArraySplit, ImageTransform
from gauntlet.datasets.splits import SPLITS, Dataset
from gauntlet.datasets.splitting import stratified_sample

SIZE = 32


class Cifar(Frozen):
    """What the two sets have in common. The test split is the official one; the others are parts of the training set.

    torchvision compares every file with the MD5 that the authors published before it unpickles it.
    """

    kind: str
    folder: Path = Field(Path("cifar"), description="holds the archive *-python.tar.gz, or the folder that is in it")
    download: bool = Field(False, description="fetch the archive into the folder when it is not there")
    validation_images: int = Field(
        5000, ge=10, le=40_000, description="taken out of training, to choose the best epoch"
    )
    calibration_images: int = Field(500, ge=10, le=5000, description="taken out of training, for quantisation ranges")
    train_images: int | None = Field(None, ge=10, description="at most so many, for a quick try; by default all")
    test_images: int | None = Field(None, ge=10, description="at most so many, for a quick try; by default all")
    layout: Literal["NCHW", "NHWC"] = Field("NCHW", description="order of an input's axes")
    seed: int = Field(0, ge=0, description="decides which picture is in which split")

    archive: ClassVar[str]
    unpacked: ClassVar[str]
    loader: ClassVar[str]
    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        folder = self.folder / self.unpacked
        return tuple(sorted(folder.iterdir())) if folder.is_dir() else (self.folder / self.archive,)

    def load(self) -> Dataset:
        """Read the pictures and split them.

        Raises:
            StageError: when they are not there, damaged, or fewer than wanted.
        """
        train, test = self._read()
        pixels = {"train": np.ascontiguousarray(train.data), "test": np.ascontiguousarray(test.data)}
        labels = {"train": np.array(train.targets, np.int64), "test": np.array(test.targets, np.int64)}
        once, several, copies = _sorted_out(pixels["train"], pixels["test"])
        chosen: dict[str, npt.NDArray[np.int64]] = {}
        for name, size in {"validation": self.validation_images, "calibration": self.calibration_images}.items():
            once, chosen[name] = stratified_sample(once, size, labels["train"], self.seed, name)
        chosen["train"] = self._at_most(self.train_images, np.union1d(once, several), labels["train"])
        chosen["test"] = self._at_most(self.test_images, np.arange(len(pixels["test"])), labels["test"])
        recipe = ImageTransform(
            how=Preprocessing(height=SIZE, width=SIZE, scale=1 / 255, mean=self.mean, std=self.std), layout=self.layout
        )
        parts = {name: "test" if name == "test" else "train" for name in SPLITS}
        splits = {
            name: ImageArraySplit(pixels[part][chosen[name]], labels[part][chosen[name]], recipe)
            for name, part in parts.items()
        }
        return Dataset(splits, recipe.signature(tuple(train.classes)), (_left_out(copies),))

    def _at_most(
        self, limit: int | None, numbers: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        if limit is None or limit >= len(numbers):
            return numbers
        return stratified_sample(numbers, limit, labels, self.seed, "a quick try")[1]

    def _read(self) -> tuple[Any, Any]:
        """Return torchvision's training and test set."""
        from torchvision import datasets
        from torchvision.datasets.utils import check_integrity, extract_archive

        source = getattr(datasets, self.loader)
        archive, unpacked = self.folder / self.archive, self.folder / self.unpacked
        with ExitStack() as stack:
            root, fetch = self.folder, self.download
            if not unpacked.is_dir() and archive.is_file() and check_integrity(archive, source.tgz_md5):
                root, fetch = Path(stack.enter_context(TemporaryDirectory())), False
                extract_archive(archive, root)
            elif not unpacked.is_dir() and not fetch:
                raise StageError(self._missing(archive, unpacked))
            try:
                return source(root, train=True, download=fetch), source(root, train=False)
            except (RuntimeError, OSError) as error:
                wanted = [*source.train_list, *source.test_list, (source.meta["filename"], source.meta["md5"])]
                wrong = [name for name, md5 in wanted if not check_integrity(root / self.unpacked / name, md5)]
                if fetch:
                    raise StageError(
                        f"{archive}: cannot be downloaded from {source.url} ({error}); "
                        "bring the file from a machine that can, or try again"
                    ) from error
                raise StageError(
                    f"{unpacked}: damaged or incomplete: {wrong} are missing or have another MD5 than the original; "
                    f"delete the folder, and unpack {self.archive} again or set data.download=true"
                ) from error

    def _missing(self, archive: Path, unpacked: Path) -> str:
        if archive.is_file():
            return (
                f"{archive}: damaged or incomplete: its MD5 is not that of the original archive; "
                "bring it again, or delete it and set data.download=true"
            )
        return (
            f"{self.folder.absolute()}: neither {archive.name} nor the folder {unpacked.name} is in it; "
            "put one of them there, or set data.download=true on a machine with internet access"
        )


class Cifar10(Cifar):
    """Ten classes; 50 000 pictures for training and 10 000 for the test."""

    kind: Literal["cifar10"] = "cifar10"

    archive: ClassVar[str] = "cifar-10-python.tar.gz"
    unpacked: ClassVar[str] = "cifar-10-batches-py"
    loader: ClassVar[str] = "CIFAR10"
    mean: ClassVar[tuple[float, float, float]] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, float, float]] = (0.2470, 0.2435, 0.2616)


class Cifar100(Cifar):
    """A hundred classes; 50 000 pictures for training and 10 000 for the test."""

    kind: Literal["cifar100"] = "cifar100"

    archive: ClassVar[str] = "cifar-100-python.tar.gz"
    unpacked: ClassVar[str] = "cifar-100-python"
    loader: ClassVar[str] = "CIFAR100"
    mean: ClassVar[tuple[float, float, float]] = (0.5071, 0.4865, 0.4409)
    std: ClassVar[tuple[float, float, float]] = (0.2673, 0.2564, 0.2762)


Places = npt.NDArray[np.int64]


def _sorted_out(train: npt.NDArray[np.uint8], test: npt.NDArray[np.uint8]) -> tuple[Places, Places, list[str]]:
    """Sort the training pictures by how often they occur, byte for byte.

    The sets are known to hold copies (Barz and Denzler 2020, "Do we train on test data?").

    Returns:
        The pictures that occur once, those that occur several times and so must stay in one split, and the names of
        those that are in the test set too and must not be learned.
    """
    known = {hashlib.sha256(picture.tobytes()).digest(): number for number, picture in enumerate(test)}
    homes: dict[bytes, list[int]] = {}
    for number, picture in enumerate(train):
        homes.setdefault(hashlib.sha256(picture.tobytes()).digest(), []).append(number)
    copies = [
        f"training picture {number} is test picture {known[digest]}"
        for digest, numbers in homes.items()
        if digest in known
        for number in numbers
    ]
    own = [numbers for digest, numbers in homes.items() if digest not in known]
    once = [numbers[0] for numbers in own if len(numbers) == 1]
    several = [number for numbers in own if len(numbers) > 1 for number in numbers]
    return np.sort(np.array(once, np.int64)), np.sort(np.array(several, np.int64)), copies


def _left_out(copies: list[str]) -> Check:
    return Check(
        name="data.duplicates_removed",
        value=len(copies),
        op="==",
        limit=0,
        unit="images",
        severity="warning",
        detail="; ".join(copies[:3]),
        remedy="nothing needs to be done: they are not trained on, because they would be answers of the test"
        if copies
        else "",
    )
