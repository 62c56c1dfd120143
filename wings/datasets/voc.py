"""Pascal VOC's format (Everingham et al., IJCV 2010): one XML file for each image."""

from pathlib import Path
from xml.etree import ElementTree

from gauntlet.core.errors import StageError
from wings.datasets.annotations import AnnotatedImage, AnnotatedObject, Annotations

FOLDER = "Annotations"
SETS = {"train": "train", "val": "validation", "test": "test"}
"""File in ImageSets/Main -> split; without test.txt, val.txt is the test split."""
EDGES = ("xmin", "ymin", "xmax", "ymax")


def read_voc(path: Path) -> Annotations:
    """Read the XML file of each image of the sets in `ImageSets/Main`, or all of them.

    Pixels count from 1, and `xmax` and `ymax` are inside of the box. Raise StageError where the sets do not fit.
    """
    if not (path / FOLDER).is_dir():
        raise StageError(
            f"{path / FOLDER}: no such folder; expected JPEGImages, Annotations and ImageSets in data.path"
        )
    annotations = Annotations()
    for name, split in _splits(path).items():
        _read_file(path / FOLDER / f"{name}.xml", split, annotations)
    names = {each.label for image in annotations.images for each in image.objects}
    annotations.labels = tuple(sorted(names))
    return annotations


def _splits(path: Path) -> dict[str, str]:
    """Return the split of each image by the name of its annotation file; `""` where there are no sets."""
    lists = {name: path / "ImageSets" / "Main" / f"{name}.txt" for name in SETS}
    sets = {name: file.read_text(encoding="utf-8").split() for name, file in lists.items() if file.is_file()}
    if not sets:
        return {file.stem: "" for file in sorted((path / FOLDER).glob("*.xml"))}
    names: dict[str, str] = {}
    for which, members in sets.items():
        split = "test" if which == "val" and "test" not in sets else SETS[which]
        if repeated := [name for name in members if names.get(name, split) != split]:
            other = names[repeated[0]]
            raise StageError(f"{lists[which]}: {repeated[0]!r} is in {other} too. Fix: remove it from one of them")
        names |= dict.fromkeys(members, split)
    if "test" not in names.values():
        raise StageError(f"{lists['test']}: no images for the split 'test'; expected test.txt or val.txt with names")
    return names


def _read_file(path: Path, split: str, annotations: Annotations) -> None:
    """Add one image; reject the file, or the objects in it that cannot be used."""
    place = f"{FOLDER}/{path.name}"
    try:
        text = path.read_bytes()
        if b"<!DOCTYPE" in text or b"<!ENTITY" in text:  # entities may expand without a limit
            annotations.reject(place, "document", "<!DOCTYPE", "plain elements", "remove the declaration")
            return
        root = ElementTree.fromstring(text)
    except OSError as error:
        annotations.reject(place, "file", error.strerror, "a readable file", "add it, or remove it from ImageSets/Main")
        return
    except ElementTree.ParseError as error:
        annotations.reject(place, "content", str(error), "well-formed XML", "copy or write it again")
        return
    name = root.findtext("filename", "").strip()
    if not name or Path(name).name != name:
        annotations.reject(place, "filename", name, "the name of a file in JPEGImages", "correct it")
        return
    image = AnnotatedImage(f"JPEGImages/{name}", split, place, _size(root))
    for number, each in enumerate(root.findall("object"), 1):
        box = each.find("bndbox")
        values = [] if box is None else [box.findtext(edge, "").strip() for edge in EDGES]
        label, where = each.findtext("name", "").strip(), f"{place}: object {number}"
        edges = _numbers(values)
        if not label:
            annotations.reject(where, "name", label, "the object's class", "add it")
        elif edges is None:
            annotations.reject(where, "bndbox", values, f"numbers for {', '.join(EDGES)}", "correct or remove it")
        else:
            counts = each.findtext("difficult", "0").strip() != "1"
            corners = (edges[0] - 1, edges[1] - 1, edges[2], edges[3])
            image.objects.append(AnnotatedObject(where, label, corners, counts))
    annotations.images.append(image)


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    """Return height and width, or None where the file declares none."""
    numbers = _numbers([root.findtext(f"size/{name}", "").strip() for name in ("height", "width")])
    return None if numbers is None or 0 in numbers else (int(numbers[0]), int(numbers[1]))


def _numbers(texts: list[str]) -> list[float] | None:
    try:
        return [float(text) for text in texts] or None
    except ValueError:
        return None
