"""Objects in images, and the boxes of an imperfect detector, as `wings.detection.detection` has them."""

import numpy as np

CLASSES = 3


def objects(rng: np.random.Generator, images: int, most: int = 5, crowds: float = 0.0, size: int = 96) -> np.ndarray:
    """Return objects of random classes, shape (images, most, 6); every image has at least one that counts."""
    corners = rng.uniform(0, 0.6 * size, (images, most, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(8, 0.4 * size, corners.shape)], axis=2)
    classes = rng.integers(0, CLASSES, (images, most, 1)).astype(float)
    classes[:, :, 0][np.arange(most)[None] >= rng.integers(1, most + 1, (images, 1))] = -1
    counts = (rng.uniform(size=(images, most, 1)) >= crowds).astype(float)
    counts[:, 0] = 1
    return np.concatenate([boxes, classes, counts], axis=2).astype(np.float32)


def imperfect(truth: np.ndarray, rng: np.random.Generator, noise: float = 2.0) -> np.ndarray:
    """Return boxes with scores: the objects with shifted edges, some of another class, and some boxes of nothing."""
    found, extra = truth.copy(), objects(rng, len(truth), most=3)
    found[:, :, :4] += rng.normal(scale=noise, size=found[:, :, :4].shape)
    found[:, :, 2:4] = np.maximum(found[:, :, 2:4], found[:, :, :2] + 1)
    wrong = (rng.uniform(size=found.shape[:2]) < 0.1) & (found[:, :, 4] >= 0)
    found[:, :, 4] = np.where(wrong, (found[:, :, 4] + 1) % CLASSES, found[:, :, 4])
    found[:, :, 5] = rng.uniform(0.3, 1, found.shape[:2])
    extra[:, :, 5] = rng.uniform(0.05, 0.7, extra.shape[:2])
    return np.concatenate([found, extra], axis=1)


def apart(rng: np.random.Generator, images: int) -> np.ndarray:
    """Return one to four objects an image that do not overlap, with scores from 0.6 to 0.95."""
    boxes = objects(rng, images, most=4)
    corners = np.array([[4, 4], [52, 4], [4, 52], [52, 52]], np.float32)
    boxes[:, :, :2] = corners
    boxes[:, :, 2:4] = corners + rng.uniform(16, 40, (images, 4, 2))
    boxes[:, :, 5] = rng.uniform(0.6, 0.95, (images, 4))
    return boxes


def truth_of(boxes: np.ndarray) -> np.ndarray:
    truth = boxes.copy()
    truth[:, :, 5] = 1
    return truth
