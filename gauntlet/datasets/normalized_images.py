"""Settings that all datasets of images share: how pixels are normalized, or become HOG features."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from gauntlet.core.signature import HogFeatures
from gauntlet.datasets.splits import DataSource

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
GRAY: dict[str, tuple[float, ...]] = {"mean": (0.0,), "std": (1.0,)}
"""The channel that histograms are made of."""


class NormalizedImages(DataSource):
    """Images, normalized per channel; with one channel they are turned gray, and may become vectors of HOG features."""

    everyday: ClassVar = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
    mean: tuple[float, ...] = Field(IMAGENET["mean"], description="per channel (1 or 3), of values from 0 to 1")
    std: tuple[float, ...] = Field(IMAGENET["std"], description="one per channel; default: ImageNet")
    layout: Literal["NCHW", "NHWC"] = Field("NCHW", description="axis order of an input")
    hog: HogFeatures | None = Field(None, description="turn each image into a vector of HOG features")

    @model_validator(mode="after")
    def _channels_agree(self) -> Self:
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean) or min(self.std) <= 0:
            values = f"mean {list(self.mean)} and std {list(self.std)}"
            order = getattr(self, "channel_order", "RGB")
            raise ValueError(f"{values}; give three of each ({order}) or one (grayscale), every std above 0")
        if self.hog is not None and len(self.mean) != 1:
            raise ValueError(f"hog: histograms are of one channel, and mean has {len(self.mean)}; remove mean and std")
        if self.hog is not None:
            self.hog.require_fitting(*self.input_size)
        return self

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input, in pixels."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _gray_for_histograms(cls, values: Any) -> Any:
        return GRAY | values if isinstance(values, dict) and values.get("hog") is not None else values
