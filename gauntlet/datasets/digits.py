"""scikit-learn's handwritten digits: 1797 grayscale images of 8x8 pixels that ship with the package."""

from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from gauntlet.core.signature import HogFeatures, Preprocessing, Signature, TensorSpec
from gauntlet.datasets.splits import SPLITS, ArraySplit, Dataset, DataSource
from gauntlet.images.preprocessing import preprocess

IMAGES = 1797
MAX_PIXEL_VALUE = 16

INPUT = "input"


class Digits(DataSource):
    """scikit-learn's digits, resized, in three equal channels or as HOG features."""

    kind: Literal["digits"] = "digits"
    image_size: int = Field(32, ge=8, le=224, description="height and width of an input, in pixels")
    validation_images: int = Field(180, ge=10, le=600, description="images that select the best epoch")
    calibration_images: int = Field(128, ge=10, le=600, description="images that set quantization ranges")
    test_images: int = Field(360, ge=10, le=600, description="images for every accuracy")
    layout: Literal["NCHW", "NHWC"] = Field("NCHW", description="axis order of an input; ignored for HOG vectors")
    hog: HogFeatures | None = Field(None, description="turn each image into a vector of HOG features")
    seed: int = Field(0, ge=0, description="determines which image is in which split")

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        held_out = self.validation_images + self.calibration_images + self.test_images
        if held_out > IMAGES - 10:
            keys = "validation_images, calibration_images and test_images"
            raise ValueError(f"{keys} take {held_out} of {IMAGES} images; leave at least 10 to train on")
        if self.hog:
            self.hog.require_fitting(self.image_size, self.image_size)
        return self

    def load(self) -> Dataset:
        """Return the four splits; each has every class in the same proportion."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        mean, std = ((0.0,), (1.0,)) if self.hog else ((0.5,) * 3, (0.5,) * 3)
        size, scale = self.image_size, 1 / MAX_PIXEL_VALUE
        how = Preprocessing(height=size, width=size, scale=scale, mean=mean, std=std, hog=self.hog)
        inputs = np.stack([preprocess(image, how, self.layout) for image in digits.images])
        labels = digits.target.astype(np.int64)
        rest = np.arange(len(labels))
        chosen = {}
        sizes = {"test": self.test_images, "validation": self.validation_images, "calibration": self.calibration_images}
        for name, count in sizes.items():
            rest, chosen[name] = train_test_split(rest, test_size=count, stratify=labels[rest], random_state=self.seed)
        chosen["train"] = rest
        signature = Signature(
            inputs=(TensorSpec(name=INPUT, dtype="float32", shape=("batch", *inputs.shape[1:])),),
            outputs=(),
            layout="none" if self.hog else self.layout,
            preprocessing=how,
            labels=tuple(str(name) for name in digits.target_names),
        )
        splits = {name: ArraySplit({INPUT: inputs[chosen[name]]}, labels[chosen[name]]) for name in SPLITS}
        return Dataset(splits, signature)
