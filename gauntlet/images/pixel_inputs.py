"""Inputs of a model that normalizes images itself, beside those of the same network without that."""

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.signature import IMAGE_SCALE, Preprocessing, Signature
from gauntlet.images.preprocessing import preprocess_batch


def host_preprocessing(how: Preprocessing) -> Preprocessing:
    """Return what a caller does with uint8 pixels of the right size for the same network, normalized outside."""
    return how.replace(in_graph=False, scale=IMAGE_SCALE)


def fitting_inputs(arrays: NamedArrays, signature: Signature) -> NamedArrays:
    """Return inputs that were recorded for a model as those of another one: images, if need be, are normalized.

    Only uint8 images of the right size, shape (n, height, width, channels), are changed: what they are does not depend
    on the model that they were recorded for. All else is returned as it is.
    """
    how, names = signature.preprocessing, [spec.name for spec in signature.inputs]
    if how is None or how.in_graph or how.hog is not None or len(names) != 1 or len(arrays) != 1:
        return arrays
    [images] = arrays.values()
    if images.dtype.name != "uint8" or images.shape[1:] != (how.height, how.width, len(how.mean)):
        return arrays
    return {names[0]: preprocess_batch(images, host_preprocessing(how), signature.layout)}
