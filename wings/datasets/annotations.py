"""What annotation files say of images: their objects, classes and splits, and what cannot be used."""

from dataclasses import dataclass, field

from gauntlet.datasets.splits import SkippedFile


@dataclass(frozen=True)
class AnnotatedObject:
    """One box in pixels of its image, the place of its annotation in a file, and whether it counts."""

    place: str
    label: str
    box: tuple[float, float, float, float]
    counts: bool = True


@dataclass
class AnnotatedImage:
    """One image by its path below the dataset's folder, its split (`""`: to be split here), and its objects.

    `size` is the height and width that the annotations declare.
    """

    file: str
    split: str
    place: str
    size: tuple[int, int] | None = None
    objects: list[AnnotatedObject] = field(default_factory=list)


@dataclass
class Annotations:
    """What the annotation files of a dataset say; `defects` are the parts that cannot be used, and why."""

    images: list[AnnotatedImage] = field(default_factory=list)
    labels: tuple[str, ...] = ()
    defects: list[SkippedFile] = field(default_factory=list)

    def reject(self, place: str, what: str, value: object, allowed: str, fix: str) -> None:
        """Add a defect: what is wrong with which value, what is allowed, and how to repair it."""
        text = repr(value)
        text = text if len(text) <= 80 else f"{text[:77]}..."
        self.defects.append(SkippedFile(file=place, reason=f"{what} is {text}; allowed: {allowed}. Fix: {fix}"))
