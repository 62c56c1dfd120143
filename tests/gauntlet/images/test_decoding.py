"""From bytes to pixels: every kind of picture, and every kind of damage with its reason."""

import io
import struct
import time
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from small_images import tiff_of_pages

from gauntlet.core.errors import StageError
from gauntlet.images.decoding import decode_image

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)


def written(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(PIXELS).convert(mode)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_decode_returns_the_pixels_when_the_format_keeps_them(kind: str) -> None:
    assert np.array_equal(decode_image(written(picture(), kind), 3), PIXELS)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF"])
def test_decode_returns_a_picture_of_the_same_size_when_the_format_loses_some(kind: str) -> None:
    assert decode_image(written(picture(), kind), 3).shape == PIXELS.shape


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("1", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("CMYK", "JPEG"), ("YCbCr", "JPEG")],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_decode_converts_when_the_picture_has_other_channels(mode: str, kind: str, channels: int) -> None:
    image = picture(mode)
    pixels = decode_image(written(image, kind), channels)
    assert (pixels.shape, pixels.dtype) == ((6, 9, channels), np.uint8)
    if kind == "PNG":
        expected = np.asarray(image.convert("RGB" if channels == 3 else "L")).reshape(6, 9, channels)
        assert np.array_equal(pixels, expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_decode_turns_the_picture_upright_when_the_camera_was_held_otherwise(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {
        1: PIXELS,
        2: PIXELS[:, ::-1],
        3: PIXELS[::-1, ::-1],
        4: PIXELS[::-1],
        5: PIXELS.transpose(1, 0, 2),
        6: np.rot90(PIXELS, -1),
        7: PIXELS[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(PIXELS, 1),
    }
    assert np.array_equal(decode_image(written(picture(), exif=exif), 3), turned[orientation])


def frames(kind: str) -> bytes:
    others = [Image.fromarray(np.roll(PIXELS, n)) for n in (1, 2)]
    return written(picture(), kind, save_all=True, append_images=others)


def png_of_16_bits() -> bytes:
    """A PNG in RGB, which Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.tobytes() for row in PIXELS.astype(">u2"))
    header = struct.pack(">IIBBBBB", PIXELS.shape[1], PIXELS.shape[0], 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(png_of_16_bits(), "16 bits per channel; expected at most 8", id="16 bits in colour"),
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"hello", "not an image, or a damaged one (supported formats: PNG, JPEG", id="text"),
        pytest.param(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image", id="a program for a printer"
        ),
        pytest.param(written(picture())[:60], "damaged: ", id="half a PNG"),
        pytest.param(written(picture(), "JPEG")[:-300], "damaged: ", id="half a JPEG"),
        pytest.param(written(picture(), "BMP")[:-20], "damaged: ", id="half a BMP"),
        pytest.param(frames("GIF"), "several frames (animated or several pages); expected one", id="animated GIF"),
        pytest.param(frames("TIFF"), "several frames", id="pages"),
        pytest.param(frames("PNG"), "several frames", id="animated PNG"),
        pytest.param(
            written(Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 257)), "pixel mode I;16", id="16 bits"
        ),
        pytest.param(written(Image.fromarray(PIXELS[:, :, 0].astype(np.float32)), "TIFF"), "pixel mode F", id="floats"),
        pytest.param(written(Image.new("1", (13000, 13000))), "13000x13000 pixels; at most 89478485 are", id="a bomb"),
        pytest.param(written(Image.new("1", (65536, 1))), "65536x1 pixels; at most 65535 are allowed on", id="a line"),
        pytest.param(written(Image.new("1", (20000, 20000))), "damaged: Image size", id="a larger bomb"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decode_refuses_with_the_reason_when_the_file_is_of_no_use(content: bytes, reason: str) -> None:
    with pytest.raises(StageError) as caught:
        decode_image(content, 3)
    assert str(caught.value).startswith(reason)


def test_decode_takes_the_first_picture_when_a_telephone_wrote_two_into_a_jpeg() -> None:
    assert decode_image(frames("MPO"), 3).shape == PIXELS.shape


WHOLE = [written(picture(), kind) for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP")]


@given(
    whole=st.sampled_from(WHOLE),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    kept=st.floats(0, 1),
)
@pytest.mark.filterwarnings("ignore")
def test_decode_returns_pixels_or_a_reason_when_any_bytes_are_changed(
    whole: bytes, changes: list[tuple[float, int]], kept: float
) -> None:
    content = bytearray(whole)
    for place, value in changes:
        content[int(place * len(content))] = value
    try:
        pixels = decode_image(bytes(content[: int(kept * len(content))]), 3)
    except StageError as error:
        assert str(error)
    else:
        assert (pixels.ndim, pixels.shape[2], pixels.dtype) == (3, 3, np.uint8)


def test_directories_of_a_tiff_are_not_counted() -> None:
    content, start = tiff_of_pages(20_000), time.thread_time()
    with pytest.raises(StageError, match="several frames"):
        decode_image(content, 1)
    assert time.thread_time() - start < 1
