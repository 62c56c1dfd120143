"""Read and write ONNX files of any size; above the limit of one file, the weights are in a second one."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import onnx

from gauntlet.core.errors import StageError, one_line

MAX_ONE_FILE_BYTES = 1_900_000_000
"""Protocol buffers are limited to 2 GiB, including the graph itself."""


def stored_tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in a model or a part of it.

    Besides initializers and constants, these are in inner graphs, model-local functions and the default values of their
    attributes, sparse tensors, and training graphs.
    """
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in (value,) if hasattr(value, "ListFields") else value:
                yield from stored_tensors(part)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node: those of If, Loop and Scan."""
    for attribute in node.attribute:
        yield from (attribute.g,) if attribute.HasField("g") else attribute.graphs


def external_locations(proto: onnx.ModelProto) -> list[str]:
    """Return the sorted locations that the model declares for external tensors; they may be wrong or unsafe."""
    return sorted({e.value for t in stored_tensors(proto) for e in t.external_data if e.key == "location"})


def invalid_external_locations(proto: onnx.ModelProto, folder: Path) -> list[str]:
    """Return the external data files that are missing, or outside the model's folder."""
    return [location for location in external_locations(proto) if not _is_local(location, folder)]


def _is_local(location: str, folder: Path) -> bool:
    if is_absolute_location(location):
        return False
    with suppress(OSError, ValueError):  # a name that is too long, or has a null byte
        file = folder / location
        return file.resolve().is_relative_to(folder.resolve()) and file.is_file()
    return False


def is_absolute_location(location: str) -> bool:
    """Return whether a location is absolute on POSIX or on Windows."""
    return PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute()


def read_graph(path: Path) -> onnx.ModelProto:
    """Read a model without its external data; `StageError` when it is missing or not an ONNX model."""
    try:
        str(path).encode()
        return onnx.load(path, load_external_data=False)
    except UnicodeEncodeError as error:
        raise StageError(f"{path}: the path is not UTF-8, and ONNX Runtime opens no other. Fix: rename it") from error
    except MemoryError:
        raise
    except Exception as error:  # the parser's errors share no public base
        raise StageError(
            f"{path}: not a readable ONNX model ({error}). Fix: copy the whole file, or export it again"
        ) from error


def read_model(path: Path) -> onnx.ModelProto:
    """Read a model with all its weights; `StageError` as in `read_graph_with_local_data`."""
    proto = read_graph_with_local_data(path)
    try:
        onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
    except Exception as error:
        raise StageError(f"{path}: its external data cannot be read ({error})") from error
    return proto


def read_graph_with_local_data(path: Path) -> onnx.ModelProto:
    """Read a model without its external data; `StageError` also when that is missing or outside its folder."""
    proto = read_graph(path)
    require_local_data(proto, path)
    return proto


def require_local_data(proto: onnx.ModelProto, path: Path) -> None:
    """Raise `StageError` when external data of the model at `path` is missing, or outside its folder."""
    invalid = invalid_external_locations(proto, path.parent)
    if invalid:
        raise StageError(
            f"{path}: its external data {one_line(invalid[0])!r} is missing, or outside the model's folder. "
            "Fix: put the data into the model's folder and refer to it by name, or export the model again"
        )
    for tensor in (tensor for tensor in stored_tensors(proto) if tensor.external_data):
        place = {entry.key: entry.value for entry in tensor.external_data}
        try:
            size = (path.parent / place["location"]).stat().st_size
            end = int(place.get("offset", 0)) + int(place.get("length", 0))
        except (KeyError, ValueError) as error:
            fix = "Fix: copy the file again, or export the model again"
            raise StageError(
                f"{path}: the place of {tensor.name!r} in external data is damaged ({error}). {fix}"
            ) from error
        if end > size:
            raise StageError(
                f"{path}: its external data {place['location']!r} has {size} bytes, and {tensor.name!r} ends at {end}. "
                "Fix: copy the whole file, or export the model again"
            )


def read_for_editing(path: Path) -> onnx.ModelProto:
    """Read a model that will be changed and written back: with its weights, unless they are too large."""
    return read_graph_with_local_data(path) if is_large_file(path) else read_model(path)


def model_files(path: Path) -> tuple[Path, ...]:
    """Return the model and the files beside it that hold its weights; the model alone where it cannot be read."""
    try:
        proto = read_graph(path)
    except StageError:
        return (path,)
    invalid = set(invalid_external_locations(proto, path.parent))
    return (path, *(path.parent / location for location in external_locations(proto) if location not in invalid))


def exceeds_protobuf_limit(proto: onnx.ModelProto) -> bool:
    """Return whether the model, with its weights loaded, is too large for one file or message."""
    return bool(sum(tensor.ByteSize() for tensor in proto.graph.initializer) > MAX_ONE_FILE_BYTES)


def is_large_file(path: Path) -> bool:
    """Return whether a model on disk is too large for one file, without reading its weights."""
    return sum(file.stat().st_size for file in model_files(path) if file.exists()) > MAX_ONE_FILE_BYTES


def copy_model(model: Path, target: Path) -> None:
    """Copy a model to `target` and its external data beside it, not as links: ONNX rejects linked weights."""
    proto = read_graph_with_local_data(model)
    names = {location: f"{target.name}.data{i or ''}" for i, location in enumerate(external_locations(proto))}
    for location, name in names.items():
        shutil.copyfile(model.parent / location, target.with_name(name))
    for entry in (e for t in stored_tensors(proto) for e in t.external_data if e.key == "location"):
        entry.value = names[entry.value]
    onnx.save(proto, target)


def write_model(proto: onnx.ModelProto, path: Path) -> list[Path]:
    """Save the model and return its files of external data; weights that were not loaded stay in their files."""
    if external_locations(proto):
        onnx.save(proto, path)
        return [*model_files(path)[1:]]
    data = path.with_name(f"{path.name}.data")
    data.unlink(missing_ok=True)
    if not exceeds_protobuf_limit(proto):
        onnx.save(proto, path)
        return []
    onnx.save(proto, path, save_as_external_data=True, all_tensors_to_one_file=True, location=data.name)
    # Saving removed the weights from the model in memory.
    onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
    return [data]


def checker_error(path: Path) -> str:
    """Return what ONNX's checker says of a file; empty for a valid one."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except MemoryError:
        raise
    except Exception as error:  # the checker and shape inference raise many types
        return one_line(error)
    return ""
