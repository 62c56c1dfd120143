"""How image files become inputs: the settings that all datasets of image files share."""

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from gauntlet.core.signature import ChannelOrder, Interpolation, Preprocessing, Resize
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.normalized_images import NormalizedImages

_Square = BeforeValidator(lambda size: (size, size) if isinstance(size, int) else size)
ImageSize = Annotated[tuple[PositiveInt, PositiveInt], _Square]


class PreparedImages(NormalizedImages):
    """Images of any size, resized and normalized; the same settings become a part of the model's signature."""

    image_size: ImageSize = Field((224, 224), description="height and width of an input; one number for both")
    resize: Resize = Field(
        "stretch",
        description="the whole image (stretch), its center (crop), or the whole image between two bars (letterbox)",
    )
    padding: int = Field(114, ge=0, le=255, description="level of a letterbox's bars, of 255; default: YOLO's")
    interpolation: Interpolation = Field("bilinear", description="Pillow's; all but nearest are antialiased")
    channel_order: ChannelOrder = Field(
        "RGB", description="of an input, and of mean and std; BGR as OpenCV reads files"
    )

    @model_validator(mode="after")
    def _order_fits_the_channels(self) -> Self:
        if self.channel_order == "BGR" and len(self.mean) == 1:
            raise ValueError(
                "channel_order: BGR, but mean and std have one value (grayscale); give three, or remove it"
            )
        return self

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input, in pixels."""
        return self.image_size

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
            hog=getattr(self, "hog", None),  # of image folders alone
        )
        return ImageTransform(how=how, layout=self.layout, name=self.input_name)
