"""The columns of a table as the inputs of a model, and its labels."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays, as_array, columns_of
from gauntlet.core.errors import StageError
from gauntlet.datasets.splits import HEAD, LABELS, array_name, input_name
from gauntlet.onnx_model.graph import Shape

Inputs = Mapping[str, Shape | None]
"""The inputs of an ONNX file with their shapes, as far as it declares them; empty for another model."""
LABEL_COLUMNS = (LABELS, "label", "target", "class", "y")
"""The first that is there, and no input of the model, has the labels."""
MISSING = ("?", "-")
"""How missing numbers are written, besides what pandas knows, such as NA."""
DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?!\d)")
ONLY_INPUT = "input"
"""What a single array is called where the model has no name for it."""


def in_order(table: Any, fitted: tuple[str, ...]) -> Any:
    """Return a table with the columns that the model was fitted on, in their order, and the labels.

    A table that has none of them, and what is no table, is taken as it is.
    """
    chosen = columns_of(table, fitted)
    if not chosen:
        return table
    labels = _label_columns([name for name in table.columns if name not in chosen])[:1]
    heads = [name for name in table.columns if str(name).startswith(HEAD) and name not in chosen]
    return table[[*chosen, *labels, *heads]]


def _label_columns(names: Iterable[Any]) -> list[Any]:
    """Return the columns that may hold labels, the likeliest first; case and spaces around names do not count."""
    likely = [(str(name).strip().lower(), name) for name in names]
    return [name for label in LABEL_COLUMNS for plain, name in sorted(likely, key=str) if plain == label]


def require_different_names(names: Iterable[str]) -> None:
    """Raise `StageError` where two columns have one name; pandas would read the second of a file under another one."""
    if repeated := next((name for name, count in Counter(names).items() if count > 1), None):
        raise StageError(f"two columns are called {repeated!r}. Fix: leave one out, or rename it")


def _column(values: Any) -> Array:
    """Return a column as an array, one of lists with their axes; missing numbers may be written as in MISSING.

    Missing texts are empty ones.
    """
    if hasattr(values.dtype, "categories"):
        values = values.astype(values.dtype.categories.dtype)
    if values.dtype.kind == "b" and values.hasnans:
        values = values.astype(float)
    if values.dtype.kind != "O":
        return as_array(values)
    if any(isinstance(value, list | np.ndarray) for value in values[:1]):
        try:
            return np.stack([_nested(value) for value in values])
        except ValueError as error:
            what = f"column {values.name!r} holds lists of several lengths"
            raise StageError(f"{what}. Fix: pad them to one length") from error
    numbers = [value for value in values if not (isinstance(value, str) and value.strip() in MISSING)]
    marked = len(numbers) < len(values) or not any(isinstance(value, str) for value in numbers)
    if marked and all(isinstance(value, int | float | None) or is_number(value) for value in numbers):
        return np.array([float(value) if is_number(value) else np.nan for value in values])
    if any(isinstance(value, str) for value in values):  # an empty cell among texts
        values = values.where(values.notna(), "")
    try:
        return as_array(values)
    except StageError as error:
        what = "neither numbers alone nor texts alone"
        raise StageError(f"column {values.name!r} holds {what}. Fix: write one kind, or leave it out") from error


def holds_times(values: Any) -> bool:
    """Return whether a column holds dates or times: as such, or as texts that begin with the year, month and day."""
    if not hasattr(values, "iloc") or not hasattr(values, "dtype"):  # of two columns of one name
        return False
    return bool(values.dtype.kind == "M" or (len(values) and DATE.match(str(values.iloc[0]))))


def split_key(values: Any, name: str) -> Array:
    """Return the numbers or texts that say how to split; raise `StageError` where one is missing."""
    if missing := int(values.isna().sum()) if hasattr(values, "isna") else 0:
        raise StageError(f"{missing} rows have no value in the column {name!r} to split by. Fix: leave them out")
    if holds_times(values) and values.dtype.kind != "M":  # dates
        values = values.astype(str)
    elif holds_times(values) and values.dt.tz:  # as texts, local times are not in order when clocks go back
        values = values.dt.tz_convert(None)
    array = as_array(values)
    return array.astype(str) if array.dtype.kind == "M" else array


def _nested(value: Any) -> Array:
    return np.stack([_nested(part) for part in value]) if isinstance(value, list | np.ndarray) else np.asarray(value)


def columns_by_input(
    table: Any, names: Inputs, fitted: tuple[str, ...] = (), matrix: tuple[str, ...] = ()
) -> NamedArrays:
    """Return a table of numbers as the matrix of a model's only input, and any other one by column.

    `names` are the model's inputs. Where texts are among the columns of its fit, each column is an input. None of
    these, and none of those of its `matrix`, has the labels.
    """
    require_different_names(map(str, table.columns))
    columns = {str(name): _column(table[name]) for name in table.columns}
    own = {*names, *fitted, *matrix}
    labelled = next(iter(_label_columns(columns.keys() - own)), None)
    labels = {} if labelled is None else {LABELS: columns.pop(labelled)}
    truth = labels.get(LABELS, np.array(0))
    if (bare := np.flatnonzero((truth == "") if truth.dtype.kind == "U" else truth != truth)).size:
        what = f"{bare.size} rows have no value in the column {labelled!r}, the first of them row {bare[0] + 1}"
        raise StageError(f"{what}. Fix: leave out rows without a label")
    labels |= {name: columns.pop(name) for name in [*columns] if name.startswith(HEAD) and name not in own}
    texts = [name for name, array in columns.items() if array.dtype.kind == "U"]
    if len(columns) == 1 and len(names) < 2 and (column := next(iter(columns.values()))).ndim > 1:
        return {next(iter(names), ONLY_INPUT): column, **labels}
    lists = any(array.ndim > 1 for array in columns.values())
    by_column = not names or (fitted and columns.keys() >= {*fitted})
    if lists or len(names) > 1 or not names.keys().isdisjoint(columns) or (texts and by_column):
        single = [name for name, shape in names.items() if shape and shape[1:] == (1,)]
        named = {array_name(name) if name in names else name: columns[name] for name in columns}
        return {name: array[:, None] if input_name(name) in single else array for name, array in named.items()} | labels
    if times := [name for name, array in columns.items() if array.dtype.kind in "mM"]:
        raise StageError(f"column {times[0]!r} holds times. Fix: write them as numbers, or leave the column out")
    if names:
        _require_matrix(columns, texts, names)
    return {next(iter(names), ONLY_INPUT): np.column_stack([*columns.values()]), **labels}


def _require_matrix(columns: NamedArrays, texts: list[str], names: Inputs) -> None:
    """Raise `StageError` where columns are not the matrix of a model's only input."""
    ((name, shape),) = names.items()
    if 0 < len(texts) < len(columns):
        values = columns[texts[0]]
        row, text = next(((row, text) for row, text in enumerate(values) if not is_number(text)), (0, values[0]))
        raise StageError(
            f"column {texts[0]!r} holds texts, such as {str(text)!r} in row {row + 1}, and others hold numbers; the "
            f"model's only input, {name!r}, takes them as one matrix. Fix: correct the row, "
            "leave the column out, or call it label if it has the labels"
        )
    if shape and len(shape) == 2 and isinstance(shape[1], int) and shape[1] != len(columns):
        raise StageError(
            f"{len(columns)} columns ({', '.join(columns)}), but the model's input {name!r} takes {shape[1]}. Fix: "
            f"leave the others out. Labels are in a column {', '.join(LABEL_COLUMNS)}, and names in the first row"
        )


def is_number(text: Any) -> bool:
    """Return whether a value, or a text, is a number."""
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True
