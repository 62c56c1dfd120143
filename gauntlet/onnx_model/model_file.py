"""ONNX files of any size: one file, or a small one with its weights beside it where a single one cannot hold them."""

import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from gauntlet.core.errors import ConfigError, StageError

MAX_ONE_FILE_BYTES = 1_900_000_000
"""Protocol buffers end at 2 GiB; the graph itself needs some of it."""


def refuse_wrong_file(path: Path) -> None:
    """Raise `ConfigError` unless there is a file with the suffix of an ONNX model."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix != ".onnx":
        raise ConfigError(f"{path}: not a model: a file named *.onnx is asked for")


def stored_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every stored tensor: initializers and constants, those of inner graphs included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
        for body in bodies(node):
            yield from stored_tensors(body)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node: those of If, Loop and Scan."""
    for attribute in node.attribute:
        yield from (attribute.g,) if attribute.HasField("g") else attribute.graphs


def external_locations(proto: onnx.ModelProto) -> list[str]:
    """Return where the model says that its external tensors lie, sorted; nothing promises that it says the truth."""
    tensors = stored_tensors(proto.graph)
    return sorted({e.value for t in tensors for e in t.external_data if e.key == "location"})


def invalid_external_locations(proto: onnx.ModelProto, folder: Path) -> list[str]:
    """Return the external data files that are not inside the model's folder, or not there."""
    return [
        place
        for place in external_locations(proto)
        if PurePosixPath(place).is_absolute()
        or PureWindowsPath(place).is_absolute()
        or not (folder / place).resolve().is_relative_to(folder.resolve())
        or not (folder / place).is_file()
    ]


def read_graph(path: Path) -> onnx.ModelProto:
    """Read a model without the weights that lie in other files.

    Raises:
        StageError: when the file is missing or no ONNX model.
    """
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # the parser's errors share no public base
        raise StageError(f"{path}: not an ONNX model ({error})") from error


def read_model(path: Path) -> onnx.ModelProto:
    """Read a model with all its weights.

    Raises:
        StageError: when the file is missing or no ONNX model, or its external data lies outside its folder.
    """
    proto = read_graph_with_local_data(path)
    try:
        onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
    except Exception as error:
        raise StageError(f"{path}: its external data cannot be read ({error})") from error
    return proto


def read_graph_with_local_data(path: Path) -> onnx.ModelProto:
    """Read a model without the weights that lie in other files, which must be inside its folder.

    Raises:
        StageError: when the file is missing or no ONNX model, or its external data lies outside its folder.
    """
    proto = read_graph(path)
    strays = invalid_external_locations(proto, path.parent)
    if strays:
        raise StageError(f"{path}: its external data {strays[0]!r} is missing, or does not lie beside the model")
    return proto


def read_for_editing(path: Path) -> onnx.ModelProto:
    """Read a model whose graph will be changed and written to its place: its weights too, unless they are too large."""
    return read_graph_with_local_data(path) if is_large_file(path) else read_model(path)


def model_files(path: Path) -> tuple[Path, ...]:
    """Return the model and the files beside it that hold its weights, as far as they can be known."""
    try:
        proto = read_graph(path)
    except StageError:  # whoever reads the model says what is wrong with it
        return (path,)
    strays = set(invalid_external_locations(proto, path.parent))
    return (path, *(path.parent / place for place in external_locations(proto) if place not in strays))


def exceeds_protobuf_limit(proto: onnx.ModelProto) -> bool:
    """Tell whether the model, with its weights loaded, is too large for one file, and for one message in memory."""
    total: int = sum(tensor.ByteSize() for tensor in proto.graph.initializer)
    return total > MAX_ONE_FILE_BYTES


def is_large_file(path: Path) -> bool:
    """Tell the same of a model on disk, without reading its weights."""
    return sum(file.stat().st_size for file in model_files(path) if file.exists()) > MAX_ONE_FILE_BYTES


def copy_model(model: Path, target: Path) -> None:
    """Copy a model to `target`; weights in files of their own come to lie beside it, under its name.

    Not as links: ONNX refuses weights in a file that has several names, symbolic or not.

    Raises:
        StageError: when it is no ONNX model, or its external data lies outside its folder.
    """
    proto = read_graph_with_local_data(model)
    names = {place: f"{target.name}.data{number or ''}" for number, place in enumerate(external_locations(proto))}
    for place, name in names.items():
        shutil.copyfile(model.parent / place, target.with_name(name))
    for entry in (e for t in stored_tensors(proto.graph) for e in t.external_data if e.key == "location"):
        entry.value = names[entry.value]
    onnx.save(proto, target)


def copy_into(model: Path, folder: Path) -> Path:
    """Copy the model to the folder, with its weights beside it; return the model's copy.

    ORT's quantiser writes scratch files beside the model that it reads, and the store's folders are not for that.
    """
    copy_model(model, folder / model.name)
    return folder / model.name


def write_model(proto: onnx.ModelProto, path: Path) -> list[Path]:
    """Save the model, and return the files that lie beside it now and hold its weights: none, or as many as it needs.

    Weights that were not read with the model stay in the files that they are in.
    """
    if external_locations(proto):
        onnx.save(proto, path)
        return [*model_files(path)[1:]]
    data = path.with_name(f"{path.name}.data")
    data.unlink(missing_ok=True)
    if not exceeds_protobuf_limit(proto):
        onnx.save(proto, path)
        return []
    onnx.save(proto, path, save_as_external_data=True, all_tensors_to_one_file=True, location=data.name)
    # That took the weights out of the model in memory: written again, it would be small, and the data would be lost.
    onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
    return [data]
