"""From a picture to a model's input. Training and serving both call this, so they cannot differ."""

import numpy as np
import numpy.typing as npt
from PIL import Image

from tasks.signature import Preprocessing


def preprocess(image: npt.NDArray[np.generic], how: Preprocessing) -> npt.NDArray[np.float32]:
    """Turn one picture, shape (height, width) or (height, width, channels), into an input of shape (channels, h, w).

    A grey picture is repeated in every channel that the model takes. Resizing is bilinear, on floats, so that no
    rounding comes in between.
    """
    pixels = np.atleast_3d(image).astype(np.float32)
    channels = len(how.mean)
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, channels, axis=2)
    planes = [
        np.asarray(Image.fromarray(pixels[:, :, c]).resize((how.width, how.height), Image.Resampling.BILINEAR))
        for c in range(channels)
    ]
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (how.mean, how.std))
    return np.ascontiguousarray((np.stack(planes) * np.float32(how.scale) - mean) / std, dtype=np.float32)
