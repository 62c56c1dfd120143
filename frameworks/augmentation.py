"""Training augmentation for small images: random crop with padding, horizontal flip, and other colors."""

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Layout, Preprocessing


class Augmentation(Frozen):
    """Random changes to the training images.

    The padding is black, or zero if the preprocessing is unknown.
    """

    recolor: bool = Field(False, description="swap the color channels at random, and invert half of the images")
    crop_padding: int = Field(0, ge=0, le=64, description="pixels added on each side before a crop of the old size")
    flip: bool = Field(False, description="mirror left and right, half of the time")

    def recolored(self, inputs: Array, rng: np.random.Generator, layout: Layout, how: Preprocessing | None) -> Array:
        """Return a copy of a batch, shape (k, channels, h, w), in layout NHWC (k, h, w, channels), in other colors.

        Without `recolor`, it is the batch itself. Raise StageError if the preprocessing is unknown or not of images.
        """
        if not self.recolor:
            return inputs
        if how is None or how.in_graph or inputs.ndim != 4 or layout == "none":
            raise StageError(
                "train.augment.recolor: what is black and what is white is unknown, because the data does not say how "
                "images become inputs. Fix: remove train.augment.recolor"
            )
        images = np.moveaxis(inputs, 3, 1) if layout == "NHWC" else inputs
        mean, std = np.asarray(how.mean), np.asarray(how.std)
        count, channels = images.shape[:2]
        order = rng.permuted(np.tile(np.arange(channels), (count, 1)), axis=1)
        inverted = rng.random((count, 1)) < 0.5
        factor = np.where(inverted, -1, 1) * std[order] / std  # from levels 0 to 1, x * std + mean, and back
        offset = (np.where(inverted, 1 - mean[order], mean[order]) - mean) / std
        factor, offset = (part.astype(np.float32)[:, :, None, None] for part in (factor, offset))
        changed = images[np.arange(count)[:, None], order] * factor + offset
        return np.ascontiguousarray(np.moveaxis(changed, 1, 3) if layout == "NHWC" else changed)

    def apply(
        self,
        inputs: Array,
        rng: np.random.Generator,
        *,
        layout: Layout = "NCHW",
        preprocessing: Preprocessing | None = None,
    ) -> Array:
        """Return an augmented copy of a batch, shape (k, channels, h, w), in layout NHWC (k, h, w, channels).

        The preprocessing determines the value of black.

        Raise StageError if the inputs are not images.
        """
        if inputs.ndim != 4 or layout == "none":
            raise StageError(
                f"train.augment shifts and mirrors images; these inputs have shape {inputs.shape[1:]} "
                f"and layout {layout}. Fix: remove train.augment"
            )
        images = inputs.transpose(0, 3, 1, 2) if layout == "NHWC" else inputs
        count, channels, height, width = images.shape
        top, left = rng.integers(0, 2 * self.crop_padding + 1, (2, count, 1))
        mirrored = rng.random((count, 1)) < 0.5
        rows, columns = top + np.arange(height), left + np.arange(width)
        if self.flip:
            columns = np.where(mirrored, columns[:, ::-1], columns)
        sample, channel = np.arange(count)[:, None, None, None], np.arange(channels)[None, :, None, None]
        cropped = self._padded(images, preprocessing)[sample, channel, rows[:, None, :, None], columns[:, None, None]]
        moved = np.ascontiguousarray(cropped.transpose(0, 2, 3, 1) if layout == "NHWC" else cropped)
        return self.recolored(moved, rng, layout, preprocessing)

    def _padded(self, images: Array, preprocessing: Preprocessing | None) -> Array:
        """Return the images, shape (k, channels, h, w), in a black frame."""
        count, channels, height, width = images.shape
        frame = self.crop_padding
        black = np.zeros(channels, np.float32)
        if preprocessing is not None:
            black[:] = -np.array(preprocessing.mean, np.float32) / np.array(preprocessing.std, np.float32)
        padded = np.empty((count, channels, height + 2 * frame, width + 2 * frame), images.dtype)
        padded[:] = black[:, None, None].astype(images.dtype)
        padded[:, :, frame : frame + height, frame : frame + width] = images
        return padded
