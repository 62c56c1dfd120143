"""The samples of a split as uint8 images, for a model that normalizes them itself."""

from dataclasses import replace

import numpy as np

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import REAL, Golden, GoldenCase
from gauntlet.datasets.image_arrays import ImageArraySplit
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.splits import ArraySplit, Split
from gauntlet.images.preprocessing import restored_pixels


def pixel_split(split: Split, source: Signature, name: str) -> Split:
    """Return a split with images, uint8, shape (n, height, width, channels), as the input `name`.

    Stored images and image files are still read when they are needed; inputs that are stored normalized, as `source`
    describes them, are turned back and rounded.
    """
    if isinstance(split, ImageArraySplit | ImageFileSplit):
        how = split.transform.how.replace(in_graph=True)
        return replace(split, transform=split.transform.replace(how=how, layout="NHWC", name=name))
    heads = split.heads if isinstance(split, ArraySplit) else {}
    return ArraySplit(pixel_inputs(split.take(slice(None)), source, name), split.labels, heads)


def pixel_inputs(inputs: NamedArrays, source: Signature, name: str) -> NamedArrays:
    """Return the images that normalized inputs were, rounded to uint8."""
    assert source.preprocessing is not None
    images = restored_pixels(inputs[source.inputs[0].name], source.preprocessing, source.layout)
    return {name: np.ascontiguousarray(images)}


def pixel_golden(golden: Golden, source: Signature, name: str) -> Golden:
    """Return the source's outputs with the real inputs as images; random inputs are no images, and are left out."""
    real = GoldenCase(pixel_inputs(golden.real.inputs, source, name), golden.real.outputs)
    return Golden({REAL: real}, golden.test_outputs, golden.labels)
