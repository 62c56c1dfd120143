"""scikit-learn's handwritten digits: 1797 real grey pictures of 8x8 pixels that ship with a package."""

from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from tasks.data.dataset import SPLITS, Dataset, Split
from tasks.data.preprocess import preprocess
from tasks.frozen import Frozen
from tasks.signature import Preprocessing, Signature, TensorSpec

IMAGES = 1797


class Digits(Frozen):
    """scikit-learn's digits, resized, in three equal channels."""

    kind: Literal["digits"] = "digits"
    image_size: int = Field(32, ge=8, le=224, description="height and width of an input, in pixels")
    validation_images: int = Field(180, ge=10, le=600, description="images that choose the best epoch")
    calibration_images: int = Field(128, ge=10, le=600, description="images that set quantisation ranges")
    test_images: int = Field(360, ge=10, le=600, description="images that every accuracy is measured on")
    seed: int = Field(0, ge=0, description="decides which image is in which split")

    @model_validator(mode="after")
    def _images_suffice(self) -> Self:
        held_out = self.validation_images + self.calibration_images + self.test_images
        if held_out > IMAGES - 10:
            raise ValueError(
                f"validation_images, calibration_images and test_images take {held_out} of {IMAGES} images; "
                "leave at least 10 to train on"
            )
        return self

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read: none, the data is part of a package."""
        return ()

    def load(self) -> Dataset:
        """Return the four splits; each has every class in the same proportion."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        how = Preprocessing(
            height=self.image_size, width=self.image_size, scale=1 / 16, mean=(0.5,) * 3, std=(0.5,) * 3
        )
        inputs = np.stack([preprocess(image, how) for image in digits.images])
        labels = digits.target.astype(np.int64)
        rest = np.arange(len(labels))
        splits = {}
        sizes = {"test": self.test_images, "validation": self.validation_images, "calibration": self.calibration_images}
        for name, size in sizes.items():
            rest, chosen = train_test_split(rest, test_size=size, stratify=labels[rest], random_state=self.seed)
            splits[name] = Split(inputs[chosen], labels[chosen])
        splits["train"] = Split(inputs[rest], labels[rest])
        signature = Signature(
            inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 3, self.image_size, self.image_size)),),
            outputs=(),
            preprocessing=how,
            labels=tuple(str(name) for name in digits.target_names),
        )
        return Dataset({name: splits[name] for name in SPLITS}, signature)
