"""Small data in the real formats: a folder of pictures, and CIFAR's archive as Python 2 wrote it."""

import hashlib
import io
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image


def picture(seed: int, height: int = 12, width: int = 16, channels: int = 3) -> np.ndarray:
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


DROP = """([bytes, name]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], name, {type: "image/png"}));
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true}));
}"""
"""What a page runs to have a file dropped on it."""


def gray_png(level: int) -> bytes:
    """Return an image file of one color, 12 x 10 pixels."""
    buffer = io.BytesIO()
    Image.new("L", (12, 10), level).save(buffer, "PNG")
    return buffer.getvalue()


def tiff_of_pages(count: int) -> bytes:
    """Return a TIFF file with directories of 110 bytes, all of the same pixel."""
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, "TIFF")
    content = bytearray(stream.getvalue())
    first = int.from_bytes(content[4:8], "little")
    size = 2 + 12 * int.from_bytes(content[first : first + 2], "little")
    directory, place = bytes(content[first : first + size]), len(content)
    content[first + size : first + size + 4] = place.to_bytes(4, "little")
    for number in range(1, count):
        content += directory + (place + number * (size + 4)).to_bytes(4, "little")
    content[-4:] = bytes(4)
    return bytes(content)


def write_pictures(root: Path, *folders: str, count: int = 10, **shape: int) -> Path:
    """Write `count` PNG files into each of the folders below `root`, each another picture; return `root`."""
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = picture(zlib.crc32(f"{folder}/{number}".encode()), **shape)
            Image.fromarray(pixels).save(root / folder / f"{number:04}.png")
    return root


class Python2Pickler(pickle._Pickler):
    """Writes texts and bytes as Python 2 did, the language of the original archive."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_text(self, text: str | bytes) -> None:
        raw = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + len(raw).to_bytes(4, "little") + raw)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_text


def python2_pickle(value: Any) -> bytes:
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(value)
    return stream.getvalue()


def write_cifar(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str = "cifar10",
    *,
    a_class: int = 12,
    test_a_class: int = 3,
    copies: int = 0,
    **do: bool,
) -> Path:
    """Write a small CIFAR archive into the folder.

    torchvision knows the MD5 of every original file. These files are other ones, so their MD5 is given to torchvision
    in place of the original's; what it does with it stays the same.
    """
    from torchvision import datasets

    source = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[kind]
    classes = {"cifar10": 10, "cifar100": 100}[kind]
    random = np.random.default_rng(0)
    train = random.integers(0, 256, (classes * a_class, 3 * 32 * 32), np.uint8)
    test = random.integers(0, 256, (classes * test_a_class, 3 * 32 * 32), np.uint8)
    train[:copies] = test[:copies]
    contents: dict[str, bytes] = {}
    for names, pixels in ((source.train_list, train), (source.test_list, test)):
        labels = np.arange(len(pixels)) % classes
        for (name, _), part, numbers in zip(
            names, np.array_split(pixels, len(names)), np.array_split(labels, len(names)), strict=True
        ):
            files = [f"picture_{number}.png" for number in range(len(part))]
            batch = {"batch_label": name, "data": part, "filenames": files}
            if kind == "cifar10":
                batch["labels"] = numbers.tolist()
            else:
                batch |= {"fine_labels": numbers.tolist(), "coarse_labels": (numbers // 5).tolist()}
            contents[name] = python2_pickle(batch)
    names = [f"{kind}-class-{number:02}" for number in range(classes)]
    contents[source.meta["filename"]] = python2_pickle({source.meta["key"]: names, "num_vis": 3072})
    pack(folder, source, contents, **do)
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    archive = folder / source.filename
    monkeypatch.setattr(source, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(source, "meta", {**source.meta, "md5": md5[source.meta["filename"]]})
    for part in ("train_list", "test_list"):
        monkeypatch.setattr(source, part, [[name, md5[name]] for name, _ in getattr(source, part)])
    if do.get("unpack"):
        archive.unlink()
    return folder


def pack(folder: Path, source: Any, contents: dict[str, bytes], *, unpack: bool = False) -> None:
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / source.filename, "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"{source.base_folder}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    if unpack:
        (folder / source.base_folder).mkdir(exist_ok=True)
        for name, content in contents.items():
            (folder / source.base_folder / name).write_bytes(content)


def photograph(seed: int, height: int = 120, width: int = 160) -> np.ndarray:
    """Return an image with large and small shapes, uint8 of shape (height, width, 3), as photographs have them."""
    rng = np.random.default_rng(seed)
    parts = {side: Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)) for side in (4, 8, 16)}
    total = sum(np.asarray(part.resize((width, height)), float) / side for side, part in parts.items())
    return np.round(255 * (total - total.min()) / np.ptp(total)).astype(np.uint8)
