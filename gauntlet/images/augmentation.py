"""The common recipe for small pictures: a random crop out of a padded picture, and a mirror."""

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Preprocessing
from gauntlet.images.preprocessing import Layout


class Augmentation(Frozen):
    """Each training picture is moved by up to `crop_padding` pixels in both directions and mirrored half of the time.

    The edge that comes in is black, as in the usual recipe, which pads the picture before it is normalised. Where
    nothing is known of the preprocessing, it is zero.
    """

    crop_padding: int = Field(0, ge=0, le=64, description="pixels added on each side before a crop of the old size")
    flip: bool = Field(False, description="mirror left and right, half of the time")

    def apply(
        self,
        inputs: npt.NDArray[np.generic],
        rng: np.random.Generator,
        *,
        layout: Layout = "NCHW",
        preprocessing: Preprocessing | None = None,
    ) -> npt.NDArray[np.generic]:
        """Return changed copies of a batch, in the same shape and type.

        Args:
            inputs: shape (k, channels, h, w), in layout NHWC (k, h, w, channels).
            rng: decides; the same state gives the same result.
            layout: order of the axes.
            preprocessing: what the signature says of the pictures; it tells the value of black.

        Raises:
            StageError: when the inputs are no pictures.
        """
        if inputs.ndim != 4 or layout == "none":
            raise StageError(
                f"train.augment moves and mirrors pictures; these inputs have shape {inputs.shape[1:]} "
                f"and layout {layout}. Leave train.augment out"
            )
        pictures = inputs.transpose(0, 3, 1, 2) if layout == "NHWC" else inputs
        count, channels, height, width = pictures.shape
        top, left = rng.integers(0, 2 * self.crop_padding + 1, (2, count, 1))
        mirrored = rng.random((count, 1)) < 0.5
        rows, columns = top + np.arange(height), left + np.arange(width)
        if self.flip:
            columns = np.where(mirrored, columns[:, ::-1], columns)
        sample, channel = np.arange(count)[:, None, None, None], np.arange(channels)[None, :, None, None]
        padded = self._padded(pictures, preprocessing)
        moved = padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]
        return np.ascontiguousarray(moved.transpose(0, 2, 3, 1) if layout == "NHWC" else moved)

    def _padded(
        self, pictures: npt.NDArray[np.generic], preprocessing: Preprocessing | None
    ) -> npt.NDArray[np.generic]:
        """Return the pictures, shape (k, channels, h, w), in a black frame."""
        count, channels, height, width = pictures.shape
        frame = self.crop_padding
        black = np.zeros((channels, 1, 1), np.float32)
        if preprocessing is not None:
            mean, std = np.array(preprocessing.mean, np.float32), np.array(preprocessing.std, np.float32)
            black[:, 0, 0] = -mean / std
        padded = np.empty((count, channels, height + 2 * frame, width + 2 * frame), pictures.dtype)
        padded[:] = black.astype(pictures.dtype)
        padded[:, :, frame : frame + height, frame : frame + width] = pictures
        return padded
