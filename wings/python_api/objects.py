"""Models and samples that Python holds as objects, written as the files that a run takes."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from configs.brought_data import read_arrays
from configs.brought_model import kind_of
from configs.frameworks import all_frameworks, framework_of
from gauntlet.core.arrays import Array, NamedArrays, as_array, write_arrays
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.datasets.splits import LABELS, NPZ_ERRORS, array_name, input_name, is_truth
from gauntlet.datasets.splitting import GROUPS, TIMES
from gauntlet.onnx_model.graph import read_untrusted_graph, required_inputs, tensor_shape
from wings.python_api.sample_files import read_samples
from wings.python_api.sound_clips import has_clips, left_out, read_clips, require_known_sounds
from wings.python_api.table_columns import ONLY_INPUT, Inputs, columns_by_input, holds_times, in_order, split_key
from wings.python_api.usual_names import WHOLE, array_files, framework_inputs, in_usual_form


def model_file(model: Any, sample: Any, store: Store) -> str:
    """Return the file of a model: its path, or an object as its framework saves it, in the store.

    `sample` are inputs, shape (n, ...), from which PyTorch learns the shapes of a module.

    Raises:
        ConfigError: for an object of no framework that is installed, or one that its framework cannot save.
    """
    if isinstance(model, str | Path):
        return str(model)
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = _saved(model, sample, Path(folder))
        except StageError as error:
            raise ConfigError(str(error)) from error
        return str(store.path(store.put(path)))


def _saved(model: Any, sample: Any, folder: Path) -> Path:
    if isinstance(model, onnx.ModelProto):
        path = folder / "model.onnx"
        onnx.save(model, path)
        return path
    for framework in all_frameworks():
        if (saved := framework.save(model, lambda: _inputs(sample), folder)) is not None:
            return saved
    known = ", ".join(framework.name for framework in all_frameworks())
    raise ConfigError(
        f"model: a {type(model).__name__} is none that can be saved here. Fix: give the path of a file, or a model of "
        f"onnx, {known}"
    )


def _inputs(sample: Any) -> tuple[Array, ...] | NamedArrays:
    """Return some inputs in the order of the call, or by name."""
    if isinstance(sample, tuple):
        return tuple(map(as_array, sample))
    if isinstance(sample, str | Path) and Path(sample).suffix == ".npz":
        arrays = read_arrays(Path(sample)) or {}
    elif sample is None or isinstance(sample, str | Path):
        raise ConfigError("the module does not say the shapes of its inputs. Fix: give some inputs, with sample=")
    else:
        first = next(_batches(sample), None)
        if first is None:
            raise ConfigError("data: there is no sample in it")
        arrays = _named(first, {})
    return {input_name(name): array for name, array in arrays.items() if not is_truth(name)}


def samples_file(
    data: Any,
    model: str,
    store: Store,
    *,
    trust: bool = False,
    group: str | None = None,
    time: str | None = None,
    columns: tuple[str, ...] = (),
    notes: dict[str, str] | None = None,
) -> str | None:
    """Return the file of samples: its path, or an `.npz` file in the store with one array for each input.

    Of arrays that have splits, it is a folder with a file for each.

    Args:
        data: a path, of what `read_samples` reads, too; an array or a table of a model's only input; a dictionary by
            input; one of these with labels, as a pair; or batches of them, such as a `DataLoader` gives.
        model: the file that they are for, which names its inputs.
        store: the home's.
        trust: read a model that may run code, for the names of its columns.
        group: the column, or the array by name, whose samples of one value stay in one split.
        time: the column, or the array by name, by which the latest samples are for the test.
        columns: those of a table that are the matrix of the model's input, where its file does not name them.
        notes: what was done to the samples is added.

    Raises:
        ConfigError: when they are none of these, or a table lacks a column that the model was fitted on.
    """
    source, noted = data, dict[str, str]()
    by = {key: name for key, name in ((GROUPS, group), (TIMES, time)) if name}
    if isinstance(data, str | Path):
        data, noted = _read(data, model, by, columns)
    if not by and (times := [str(name) for name in getattr(data, "columns", ()) if holds_times(data[name])]):
        noted["time"] = f"{times[0]} holds times, and the split is random; --time {times[0]} tests the latest samples"
    if data is None and (time or (group and source is None)):
        raise ConfigError(f"--{'time' if time else 'group'}: {source or 'random samples'} has no columns to split by")
    if source is None:
        return None
    in_files = array_files(Path(source)) if data is None else {}
    if data is None and not in_files:
        return str(source)
    what = str(source) if isinstance(source, str | Path) else type(data).__name__
    names = _input_shapes(model) or framework_inputs(model, store, trust=trust)
    try:
        fitted = _fitted_columns(Path(model), store, trust=trust)
        parts = in_files or {WHOLE: _joined(in_order(data, columns), by, names, fitted, columns)}
        if fitted and all({*fitted} <= arrays.keys() for arrays in parts.values()):
            names = dict.fromkeys(fitted)  # each column is an input
        splits, changes = in_usual_form(parts, names)
        for arrays in splits.values() if changes or not in_files else ():
            _require_inputs(arrays, _input_shapes(model))
    except (StageError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"data: {what} is not read as samples: {error}") from error
    _require_samples(splits, what)
    if in_files and not changes:
        return str(source)
    if notes is not None:
        notes |= noted | ({"arrays": changes} if changes else {})
    return _stored(splits, store)


def _require_samples(splits: Mapping[str, NamedArrays], what: str) -> None:
    """Raise `ConfigError` where a split has no array, or an empty one."""
    if not all(arrays and all(array.shape[:1] != (0,) for array in arrays.values()) for arrays in splits.values()):
        raise ConfigError(f"data: {what} has no samples. Fix: save one row a sample")


def _fitted_columns(model: Path, store: Store, *, trust: bool) -> tuple[str, ...]:
    """Return the columns that a framework's model was fitted on; a file of the store has been trusted before."""
    framework = framework_of(kind_of(model))
    return framework.columns(model, trust or store.holds(model)) if framework else ()


def _read(
    source: str | Path, model: str, by: Mapping[str, str], columns: tuple[str, ...]
) -> tuple[Any, dict[str, str]]:
    """Return the samples of a path, None where only a run reads it, and a note of files that are left out."""
    path, noted = Path(source), dict[str, str]()
    named = path.suffix == ".npz" and (by or any(map(is_truth, _input_shapes(model))))
    data = read_arrays(path) if named else read_samples(str(source), columns, _text_inputs(model))
    if path.is_dir() and has_clips(path):
        data = _clips(path, model)
        noted |= {"files": others} if (others := left_out(path)) else {}
    elif path.is_dir():
        require_known_sounds(path)
    return _repeated_scalars(path, model) if data is None and path.suffix == ".npz" else data, noted


def _joined(data: Any, by: Mapping[str, str], names: Inputs, *columns: tuple[str, ...]) -> NamedArrays:
    """Return the arrays of all batches, by input."""
    batches = [_with_keys(batch, by, names, *columns) for batch in _batches(data)]
    if single := [name for batch in batches[:1] for name, array in batch.items() if not array.ndim]:
        raise StageError(f"{single[0]} is one value, not one for each sample. Fix: give batches")
    return {name: np.concatenate([batch[name] for batch in batches]) for name in next(iter(batches), ())}


def _stored(splits: dict[str, NamedArrays], store: Store) -> str:
    """Write arrays to the store; return the file, or the folder of a file for each split."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{split or 'samples'}.npz" for split in splits]
        for path, arrays in zip(files, splits.values(), strict=True):
            write_arrays(path, arrays)
        stored = store.path(store.put(*files))
        return str(stored if WHOLE in splits else stored.parent)


def _require_inputs(arrays: NamedArrays, names: Inputs) -> None:
    if arrays and (missing := [name for name in names if array_name(name) not in arrays]):
        raise StageError(f"no input {missing[0]!r}; found: {', '.join(arrays)}. Fix: name them as the model's inputs")


def _input_shapes(model: str) -> Inputs:
    """Return the shapes of an ONNX file's inputs by name; none of another model, whose framework knows them."""
    return {value.name: tensor_shape(value) for value in _graph_inputs(model)}


def _text_inputs(model: str) -> tuple[str, ...]:
    return tuple(i.name for i in _graph_inputs(model) if i.type.tensor_type.elem_type == onnx.TensorProto.STRING)


def _graph_inputs(model: str) -> list[onnx.ValueInfoProto]:
    try:
        return required_inputs(read_untrusted_graph(Path(model)).graph) if kind_of(Path(model)) == "onnx" else []
    except StageError as error:
        raise ConfigError(str(error)) from error


def _repeated_scalars(path: Path, model: str) -> NamedArrays | None:
    """Return the arrays of a file with its scalars, which are for all samples, once for each of them; None without.

    Each sample is then a whole input of the model, as that has no axis for the samples.
    """
    ranks = {name: len(shape) for name, shape in _input_shapes(model).items() if shape is not None}
    if 0 not in ranks.values():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name in (*ranks, LABELS)}
    except NPZ_ERRORS:  # what reads the samples says more about it
        return None
    axes = {name: array.ndim for name, array in arrays.items() if name in ranks}
    if 0 not in axes.values() or axes != ranks or not any(axes.values()):
        return None
    count = len(next(arrays[name] for name, rank in ranks.items() if rank))
    whole = {name: arrays[name][:, None] if rank else np.repeat(arrays[name], count) for name, rank in ranks.items()}
    return whole | {name: array for name, array in arrays.items() if name == LABELS}


def _clips(path: Path, model: str) -> tuple[Array, ...]:
    """Return the clips of a folder for the only input of a model; raise `ConfigError` when they do not fit it."""
    shapes = [*_input_shapes(model).values()]
    shape = shapes[0] if len(shapes) == 1 else None
    try:
        return read_clips(path, shape)
    except StageError as error:
        raise ConfigError(f"--data {path}: {error}") from error


def _batches(data: Any) -> Iterator[Any]:
    """Yield the batches of what gives them one after another, such as a `DataLoader`; else all samples as one."""
    if isinstance(data, list) and data and isinstance(data[0], tuple | Mapping):
        yield _collated(data)
    elif isinstance(data, Mapping | tuple | list) or hasattr(data, "__array__"):
        yield data
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Sequence):  # PyTorch's
        yield _collated([data[index] for index in range(len(data))])
    elif isinstance(data, Iterable):
        yield from data
    else:
        raise StageError("expected arrays, a table, or batches of them, such as a DataLoader gives")


def _collated(samples: Sequence[Any]) -> Any:
    """Return single samples, each alone or with its label, as one batch."""
    first = next(iter(samples), None)
    if isinstance(first, Mapping):
        return {name: np.stack([as_array(sample[name]) for sample in samples]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(np.stack([as_array(part) for part in parts]) for parts in zip(*samples, strict=True))
    return np.stack([as_array(sample) for sample in samples])


def _with_keys(
    batch: Any, by: Mapping[str, str], names: Inputs, fitted: tuple[str, ...], matrix: tuple[str, ...]
) -> NamedArrays:
    """Return arrays by input, and the columns that say how to split, which are inputs only where the model has them."""
    columns = list(getattr(batch, "columns", batch if isinstance(batch, Mapping) else ()))
    if missing := [name for name in by.values() if name not in columns]:
        raise StageError(f"no column {missing[0]!r} to split by; found: {', '.join(map(str, columns)) or 'none'}")
    keys = {key: split_key(batch[name], name) for key, name in by.items()}
    for name in {*by.values()} - {*names, *fitted}:
        kept = [column for column in columns if column != name]
        batch = {column: batch[column] for column in kept} if isinstance(batch, Mapping) else batch[kept]
    return _named(batch, names, fitted, matrix) | keys


def _has_parts(batch: list[Any]) -> bool:
    """Return whether a list is samples and labels, as a `DataLoader` gives them, and no array; labels may be texts."""
    last = batch[-1] if batch else None
    texts = len(batch) == 2 and isinstance(last, tuple | list) and all(isinstance(label, str) for label in last)
    return all(hasattr(part, "__array__") for part in (batch[:-1] if texts else batch))


def _named(batch: Any, names: Inputs, fitted: tuple[str, ...] = (), matrix: tuple[str, ...] = ()) -> NamedArrays:
    """Return arrays by input; `names` are the model's inputs, `fitted` and `matrix` its columns, if it has any."""
    if isinstance(batch, Mapping):
        renamed = {name for name in names if array_name(name) not in batch}  # `input:labels`, as a file may say itself
        return {array_name(str(n)) if n in renamed else str(n): as_array(array) for n, array in batch.items()}
    if isinstance(batch, tuple) or (isinstance(batch, list) and _has_parts(batch)):
        if len(batch) > 2:
            what = f"a batch of {len(batch)} parts; expected samples, or a pair of samples and labels"
            raise StageError(f"{what}. Fix: give these two, or a dictionary by input")
        inputs = _named(batch[0], names, fitted, matrix)
        return inputs if len(batch) == 1 else {**inputs, LABELS: as_array(batch[1])}
    if hasattr(batch, "columns"):
        return columns_by_input(in_order(batch, fitted), names, fitted, matrix)
    return {next(iter(names), ONLY_INPUT): as_array(batch)}
