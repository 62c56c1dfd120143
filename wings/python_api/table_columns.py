"""The columns of a table as the inputs of a model, and its labels."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gauntlet.core.arrays import NamedArrays, as_array
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.datasets.splits import HEAD, LABELS, array_name, input_name
from gauntlet.onnx_model.graph import Shape

Inputs = Mapping[str, Shape | None]
"""The inputs of an ONNX file with their shapes, as far as it declares them; empty for another model."""
LABEL_COLUMNS = (LABELS, "label", "target", "class", "y")
"""The first that is there, and no input of the model, has the labels."""
ONLY_INPUT = "input"
"""What a single array is called where the model has no name for it."""


def in_order(table: Any, fitted: tuple[str, ...]) -> Any:
    """Return a table with the columns that the model was fitted on, in their order, and the labels.

    A table that has none of them is taken as it is. LightGBM writes underscores for spaces.
    """
    by_name = {str(name).replace(" ", "_"): name for name in table.columns}
    known = [name for name in fitted if name.replace(" ", "_") in by_name]
    if not known:
        return table
    if missing := [name for name in fitted if name not in known]:
        raise ConfigError(f"data: no column {missing[0]!r}, on which the model was fitted; found: {', '.join(by_name)}")
    chosen = [by_name[name.replace(" ", "_")] for name in fitted]
    labels = [name for name in LABEL_COLUMNS if name in table.columns and name not in chosen][:1]
    heads = [name for name in table.columns if str(name).startswith(HEAD) and name not in chosen]
    return table[[*chosen, *labels, *heads]]


def columns_by_input(table: Any, names: Inputs) -> NamedArrays:
    """Return a table of numbers as the matrix of a model's only input, and any other one by column."""
    columns = {str(name): as_array(table[name]) for name in table.columns}
    labelled = next((name for name in LABEL_COLUMNS if name in columns and name not in names), None)
    labels = {} if labelled is None else {LABELS: columns.pop(labelled)}
    labels |= {name: columns.pop(name) for name in [*columns] if name.startswith(HEAD) and name not in names}
    texts = [name for name, array in columns.items() if array.dtype.kind == "U"]
    if len(names) > 1 or not names.keys().isdisjoint(columns) or (texts and not names):
        one = [name for name, shape in names.items() if shape and shape[1:] == (1,)]
        named = {array_name(name) if name in names else name: columns[name] for name in columns}
        return {name: array[:, None] if input_name(name) in one else array for name, array in named.items()} | labels
    if names:
        _require_matrix(columns, texts, names)
    return {next(iter(names), ONLY_INPUT): np.column_stack([*columns.values()]), **labels}


def _require_matrix(columns: NamedArrays, texts: list[str], names: Inputs) -> None:
    """Raise `StageError` where columns are not the matrix of a model's only input."""
    ((name, shape),) = names.items()
    if 0 < len(texts) < len(columns):
        row, text = next((row, text) for row, text in enumerate(columns[texts[0]]) if not _is_number(text))
        raise StageError(
            f"column {texts[0]!r} holds texts, such as {str(text)!r} in row {row + 1}, and others hold numbers; the "
            f"model's only input, {name!r}, takes them as one matrix. Fix: correct the row, or leave the column out"
        )
    if shape and len(shape) == 2 and isinstance(shape[1], int) and shape[1] != len(columns):
        raise StageError(
            f"{len(columns)} columns ({', '.join(columns)}), but the model's input {name!r} takes {shape[1]}. Fix: "
            f"leave the others out. Labels are in a column {', '.join(LABEL_COLUMNS)}, and names in the first row"
        )


def _is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
