"""The one pass that reads every file of a folder of pictures: what is in it, and what is of no use."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.core.errors import StageError
from gauntlet.core.workspace import steps_log
from gauntlet.datasets.directory_index import printable_name
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.image_files import ImageFileSplit, map_in_threads
from gauntlet.datasets.splits import SkippedFile
from gauntlet.images.decoding import decode_image

AT_ONCE = 256
"""Files between two steps of the progress bar."""


@dataclass
class ImageScan:
    """The usable pictures, column by column, and the files that are of no use."""

    root: Path
    recipe: ImageTransform
    skipped: list[SkippedFile]
    titles: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)
    seen: int = 0

    def scan(self, title: str, label: int, files: list[str], total: int) -> None:
        """Decode the files of one class of one split."""
        for start in range(0, len(files), AT_ONCE):
            part = files[start : start + AT_ONCE]
            for name, result in zip(part, map_in_threads(self._look, part), strict=True):
                if isinstance(result, str):
                    self.skipped.append(SkippedFile(file=printable_name(name), reason=result))
                    continue
                self.titles.append(title)
                self.names.append(name)
                self.labels.append(label)
                self.digests.append(result[0])
                self.fingerprints.append(result[1])
            self.seen += len(part)
            self.tell(total)

    def tell(self, total: int) -> None:
        """Move the progress bar."""
        extra = {"done": self.seen, "total": total, "unit": "file", "metrics": {}}
        steps_log.info("file %d/%d", self.seen, total, extra=extra)

    def split(self, places: npt.NDArray[np.int64]) -> ImageFileSplit:
        """Return the pictures at these places."""
        return ImageFileSplit(
            self.root,
            tuple(self.names[i] for i in places),
            np.array([self.labels[i] for i in places], np.int64),
            tuple(self.digests[i] for i in places),
            self.recipe,
            tuple(self.fingerprints[i] for i in places),
        )

    def _look(self, name: str) -> tuple[bytes, bytes] | str:
        """Return the digests of a file and of its pixels, or why it is of no use."""
        path = self.root / name
        if not path.is_file():
            return "no file" if path.exists() else "a link that leads nowhere"
        try:
            content = path.read_bytes()
            pixels = decode_image(content, len(self.recipe.how.mean))
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        except StageError as error:
            return str(error)
        shape = str(pixels.shape).encode()
        return hashlib.sha256(content).digest(), hashlib.sha256(shape + pixels.tobytes()).digest()
