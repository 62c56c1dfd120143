"""How image files become inputs: the settings that all datasets of image files share."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from gauntlet.core.signature import ChannelOrder, Interpolation, Preprocessing, Resize
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.splits import DataSource

_Square = BeforeValidator(lambda size: (size, size) if isinstance(size, int) else size)
ImageSize = Annotated[tuple[PositiveInt, PositiveInt], _Square]


class PreparedImages(DataSource):
    """Images of any size, resized and normalized; the same settings become a part of the model's signature."""

    image_size: ImageSize = Field((224, 224), description="height and width of an input; one number for both")
    mean: tuple[float, ...] = Field((0.485, 0.456, 0.406), description="per channel (1 or 3), of values from 0 to 1")
    std: tuple[float, ...] = Field((0.229, 0.224, 0.225), description="one per channel; default: ImageNet")
    resize: Resize = Field(
        "stretch",
        description="the whole image (stretch), its center (crop), or the whole image between two bars (letterbox)",
    )
    padding: int = Field(114, ge=0, le=255, description="level of a letterbox's bars, of 255; default: YOLO's")
    interpolation: Interpolation = Field("bilinear", description="Pillow's; all but nearest are antialiased")
    channel_order: ChannelOrder = Field(
        "RGB", description="of an input, and of mean and std; BGR as OpenCV reads files"
    )
    layout: Literal["NCHW", "NHWC"] = Field("NCHW", description="axis order of an input")
    input_name: str = Field("input", description="name of the model's input")

    @model_validator(mode="after")
    def _channels_agree(self) -> Self:
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean) or min(self.std) <= 0:
            given = f"mean {list(self.mean)} and std {list(self.std)}"
            raise ValueError(
                f"{given}; give three of each ({self.channel_order}) or one (grayscale), every std above 0"
            )
        if self.channel_order == "BGR" and len(self.mean) == 1:
            raise ValueError(
                "channel_order: BGR, but mean and std have one value (grayscale); give three, or remove it"
            )
        return self

    @property
    def transform(self) -> ImageTransform:
        """What turns an image into an input."""
        height, width = self.image_size
        how = Preprocessing(
            height=height,
            width=width,
            scale=1 / 255,
            mean=self.mean,
            std=self.std,
            resize=self.resize,
            padding=self.padding,
            interpolation=self.interpolation,
            channel_order=self.channel_order,
        )
        return ImageTransform(how=how, layout=self.layout, name=self.input_name)
