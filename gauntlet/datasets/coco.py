"""COCO's format (Lin et al., ECCV 2014): images in folders, and their objects in one JSON file a split."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.datasets.annotated_images import AnnotatedImage, AnnotatedImages, AnnotatedObject, Annotations

SplitName = Literal["train", "validation", "calibration", "test"]


class Coco(AnnotatedImages):
    """Boxes in JSON files as COCO's `instances_*.json`; crowds are neither learned nor counted.

    One file is split here. With one file a split, validation and calibration may be missing: both are taken out of
    `train`, or without that, calibration out of `test`.
    """

    kind: Literal["coco"] = "coco"
    annotations: Path | dict[SplitName, Path] = Field(
        Path("annotations.json"), description="JSON file, or one by split; below `path`"
    )
    images: Path | dict[SplitName, Path] = Field(
        Path(), description="folder of the images, or one by split; below `path`"
    )

    def read_annotations(self) -> Annotations:
        """Read all JSON files; their categories must be the same."""
        named, places = self.annotations, self.images
        files = {str(key): file for key, file in named.items()} if isinstance(named, dict) else {"": named}
        if isinstance(places, dict):
            folders = {str(key): folder for key, folder in places.items()}
        else:
            folders = dict.fromkeys(files, places)
        found = Annotations()
        for split, file in files.items():
            if split not in folders:
                raise StageError(f"data.images names no folder for {split or 'all'}; it has {sorted(folders)}")
            folder = folders[split]
            labels = _CocoFile(self.path / file, str(file), split, folder, found).read()
            if found.labels and labels != found.labels:
                raise StageError(f"{self.path / file}: its categories are not those of the other files; use the same")
            found.labels = labels
        return found


class _CocoFile:
    """One JSON file; what cannot be used is rejected by the name of the file, and the id of image or annotation."""

    def __init__(self, path: Path, name: str, split: str, folder: Path, found: Annotations) -> None:
        self.path, self.name, self.split, self.folder, self.found = path, name, split, folder, found

    def read(self) -> tuple[str, ...]:
        """Add the images with their objects, and return the names of the categories in the order of their ids."""
        content = self._content()
        categories = {each["id"]: str(each["name"]) for each in self._records(content, "categories", "id", "name")}
        images: dict[object, AnnotatedImage] = {}
        files = {image.file for image in self.found.images}
        for each in self._records(content, "images", "id", "file_name"):
            image = self._image(each)
            if each["id"] in images:
                self.found.reject(f"{self.name}: image {each['id']}", "id", each["id"], "one image an id", "renumber")
            elif image is not None and image.file in files:
                where = f"{self.name}: image {each['id']}"
                self.found.reject(where, "file_name", each["file_name"], "one entry a file", "remove the copy")
            elif image is not None:
                images[each["id"]] = image
                files.add(image.file)
        for each in self._records(content, "annotations", "image_id", "category_id", "bbox"):
            place = f"{self.name}: annotation {each.get('id', '(no id)')}"
            if each["image_id"] not in images:
                self.found.reject(place, "image_id", each["image_id"], "an id of `images`", "correct or remove it")
            elif each["category_id"] not in categories:
                known = ", ".join(map(str, sorted(categories, key=str)[:10]))
                self.found.reject(place, "category_id", each["category_id"], known, "correct or remove it")
            elif not _is_box(each["bbox"]):
                self.found.reject(place, "bbox", each["bbox"], "[left, top, width, height]", "correct or remove it")
            else:
                left, top, width, height = map(float, each["bbox"])
                box = (left, top, left + width, top + height)
                counts = not each.get("iscrowd", 0)
                label = categories[each["category_id"]]
                images[each["image_id"]].objects.append(AnnotatedObject(place, label, box, counts))
        self.found.images += images.values()
        return tuple(name for _, name in sorted(categories.items(), key=lambda item: (str(type(item[0])), item[0])))

    def _content(self) -> Mapping[str, Any]:
        wanted = "expected COCO's format: an object with the lists images, annotations and categories"
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except OSError as error:
            raise StageError(f"{self.path}: {error.strerror}. Fix: set data.annotations; {wanted}") from error
        except ValueError as error:
            raise StageError(f"{self.path}: not valid JSON ({error}). Fix: copy it again; {wanted}") from error
        missing = [key for key in ("images", "annotations", "categories") if not _is_list(content, key)]
        if missing:
            raise StageError(f"{self.path}: no list {missing[0]!r}; {wanted}")
        return dict(content)

    def _records(self, content: Mapping[str, Any], key: str, *needed: str) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of a list that have the needed keys, with ids that can be compared; reject the others."""
        for number, each in enumerate(content[key]):
            place = f"{self.name}: {key}[{number}]"
            if not isinstance(each, dict):
                self.found.reject(place, "entry", each, "an object", "correct or remove it")
            elif missing := [name for name in needed if name not in each]:
                self.found.reject(place, missing[0], None, f"an object with {', '.join(needed)}", "add it")
            elif bad := [name for name in needed if name.endswith("id") and not isinstance(each[name], int | str)]:
                self.found.reject(place, bad[0], each[bad[0]], "a whole number", "correct it")
            else:
                yield each

    def _image(self, each: Mapping[str, Any]) -> AnnotatedImage | None:
        place, name = f"{self.name}: image {each['id']}", each["file_name"]
        if not isinstance(name, str) or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            self.found.reject(place, "file_name", name, "a path below data.images", "correct it")
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
