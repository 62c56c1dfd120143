"""COCO's format (Lin et al., ECCV 2014): images in folders, and their objects in one JSON file a split."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from gauntlet.core.errors import StageError
from gauntlet.datasets.splits import SplitName
from wings.datasets.annotations import SPLIT_OF_WORD, AnnotatedImage, AnnotatedObject, Annotations


def read_coco(
    path: Path, annotations: Path | Mapping[SplitName, Path], images: Path | Mapping[SplitName, Path]
) -> Annotations:
    """Read one JSON file, or one by split, below a folder; their categories must be the same.

    `images` is the folder of the images, or one by split. Raise StageError where a file is not of COCO's format.
    """
    files = (
        {"": annotations} if isinstance(annotations, Path) else {str(key): file for key, file in annotations.items()}
    )
    if isinstance(images, Path):
        folders = dict.fromkeys(files, images)
    else:
        folders = {str(key): folder for key, folder in images.items()}
    result = Annotations()
    for split, file in files.items():
        if split not in folders:
            raise StageError(f"data.images names no folder for {split or 'all'}; it has {sorted(folders)}")
        labels = _CocoFile(path / file, str(file), split, folders[split], result).read()
        if result.labels and labels != result.labels:
            raise StageError(f"{path / file}: its categories are not those of the other files; use the same")
        result.labels = labels
    return result


def recognize_coco(path: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Return the settings that read JSON files below a folder: one, or those named after splits; none for other files.

    Of several for a split, it is the first: `instances_val.json` is before `person_keypoints_val.json`. Their images
    are in whichever folder has the first one, if possible in that of the file, or one named after its split.
    """
    known: dict[Path, Path] = {}
    folders = [Path(), *(folder.relative_to(path) for level in ("*/", "*/*/") for folder in sorted(path.glob(level)))]
    for file in (file.relative_to(path) for file in files):
        try:
            content = json.loads((path / file).read_text(encoding="utf-8-sig"))
            name = str(content["images"][0]["file_name"])
        except (OSError, ValueError, TypeError, KeyError, IndexError):
            continue
        places = [folder for folder in folders if (path / folder / name).is_file()]
        if {"annotations", "categories"} <= content.keys() and places:
            split = _split_of(file)
            known[file] = min(places, key=lambda place: (place != file.parent, _split_of(place) != split))
    splits: dict[str, Path] = {}
    for file in known:
        splits.setdefault(_split_of(file), file)
    splits.pop("", None)
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits.pop("validation")
    if "test" in splits:
        return {"annotations": splits, "images": {split: known[file] for split, file in splits.items()}}
    [first, *_] = known or [None]
    return {} if first is None else {"annotations": first, "images": known[first]}


def _split_of(path: Path) -> str:
    """Return the split that the name of a file or folder, or of one above it, tells; else an empty text."""
    words = (word for part in reversed(path.parts) for word in re.findall("[a-z]+", part.lower()))
    return next((SPLIT_OF_WORD[word] for word in words if word in SPLIT_OF_WORD), "")


class _CocoFile:
    """One JSON file; what cannot be used is rejected by the name of the file, and the id of image or annotation."""

    def __init__(self, path: Path, name: str, split: str, folder: Path, annotations: Annotations) -> None:
        self.path, self.name, self.split, self.folder, self.result = path, name, split, folder, annotations

    def read(self) -> tuple[str, ...]:
        """Add the images with their objects, and return the names of the categories in the order of their ids."""
        content = self._content()
        categories: dict[object, str] = {}
        for each in self._records(content, "categories", "id", "name"):
            if each["id"] in categories:
                raise StageError(f"{self.path}: two categories have the id {each['id']!r}. Fix: give each its own")
            categories[each["id"]] = str(each["name"])
        images: dict[object, AnnotatedImage] = {}
        files = {image.file for image in self.result.images}
        for each in self._records(content, "images", "id", "file_name"):
            image = self._image(each)
            if each["id"] in images:
                self.result.reject(f"{self.name}: image {each['id']}", "id", each["id"], "one image an id", "renumber")
            elif image is not None and image.file in files:
                where = f"{self.name}: image {each['id']}"
                self.result.reject(where, "file_name", each["file_name"], "one entry a file", "remove the copy")
            elif image is not None:
                images[each["id"]] = image
                files.add(image.file)
        for each in self._records(content, "annotations", "image_id", "category_id", "bbox"):
            place = f"{self.name}: annotation {each.get('id', '(no id)')}"
            if each["image_id"] not in images:
                self.result.reject(place, "image_id", each["image_id"], "an id of `images`", "correct or remove it")
            elif each["category_id"] not in categories:
                known = ", ".join(map(str, sorted(categories, key=str)[:10]))
                self.result.reject(place, "category_id", each["category_id"], known, "correct or remove it")
            elif not _is_box(each["bbox"]):
                self.result.reject(place, "bbox", each["bbox"], "[left, top, width, height]", "correct or remove it")
            else:
                left, top, width, height = map(float, each["bbox"])
                box = (left, top, left + width, top + height)
                counts = each.get("iscrowd") in (None, 0, "0")
                label = categories[each["category_id"]]
                images[each["image_id"]].objects.append(AnnotatedObject(place, label, box, counts))
        self.result.images += images.values()
        return tuple(name for _, name in sorted(categories.items(), key=lambda item: (str(type(item[0])), item[0])))

    def _content(self) -> Mapping[str, Any]:
        expected = "expected COCO's format: an object with the lists images, annotations and categories"
        try:
            content = json.loads(self.path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            fix = f"set data.annotations; {expected}"
            raise StageError(f"{self.path}: {error.strerror}. Fix: {fix}") from error
        except ValueError as error:
            raise StageError(f"{self.path}: not valid JSON ({error}). Fix: copy it again; {expected}") from error
        missing = [key for key in ("images", "annotations", "categories") if not _is_list(content, key)]
        if missing:
            raise StageError(f"{self.path}: no list {missing[0]!r}; {expected}")
        return dict(content)

    def _records(self, content: Mapping[str, Any], key: str, *needed: str) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of a list that have the needed keys, with ids that can be compared; reject the others."""
        for number, each in enumerate(content[key]):
            place = f"{self.name}: {key}[{number}]"
            if not isinstance(each, dict):
                self.result.reject(place, "entry", each, "an object", "correct or remove it")
            elif missing := [name for name in needed if name not in each]:
                self.result.reject(place, missing[0], None, f"an object with {', '.join(needed)}", "add it")
            elif bad := [name for name in needed if name.endswith("id") and not isinstance(each[name], int | str)]:
                self.result.reject(place, bad[0], each[bad[0]], "a whole number", "correct it")
            else:
                yield each

    def _image(self, each: Mapping[str, Any]) -> AnnotatedImage | None:
        place, name = f"{self.name}: image {each['id']}", each["file_name"]
        if not isinstance(name, str) or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            self.result.reject(place, "file_name", name, "a path below data.images", "correct it")
            return None
        size = (each["height"], each["width"]) if {"height", "width"} <= each.keys() else None
        return AnnotatedImage(str(self.folder / name), self.split, place, size)


def _is_list(content: object, key: str) -> bool:
    return isinstance(content, dict) and isinstance(content.get(key), list)


def _is_box(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(number, int | float) and not isinstance(number, bool) for number in value)
    )
