"""Samples in files of arrays and tables, and those that a user's function gives."""

import warnings
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.core.user_code import UserFunction
from gauntlet.datasets.splits import LABELS
from wings.python_api.table_columns import LABEL_COLUMNS, is_number, require_different_names

NAMES = {"csv": "csv", "tsv": "csv", "data": "csv", "parquet": "parquet", "json": "json", "jsonl": "json"}
TABLES = {f".{suffix}": f"read_{kind}" for suffix, kind in NAMES.items()}
"""Suffix of a table -> pandas' function that reads it."""
DEFAULT_FUNCTION = "samples"
KINDS = (
    f"a folder of images or .wav files, .npz (inputs by name), .npy, {', '.join(TABLES)}, or FILE.py:FUNCTION that "
    "gives batches"
)


def read_samples(name: str, columns: tuple[str, ...] = (), texts: tuple[str, ...] = ()) -> Any:
    """Return an array, a table, or what a user's function returns; None for an `.npz` file, a folder, or nothing there.

    Args:
        name: a path, or `FILE.py:FUNCTION`; the function of `FILE.py` alone is `samples`.
        columns: known names of a table's columns, which may be numbers.
        texts: columns whose values stay texts, such as "007".

    Raises:
        ConfigError: when the file is of another kind, or cannot be read.
    """
    file, _, function = name.partition(":") if ".py:" in name else (name, "", DEFAULT_FUNCTION)
    path = Path(file)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if not path.is_file() or suffix == ".npz":
        return None
    if suffix not in (".npy", ".py", *TABLES):
        fix = "Fix: write it as one of these, with numpy.savez or the to_csv of pandas"
        raise ConfigError(f"--data {file}: a file of no known kind; expected {KINDS}. {fix}")
    try:
        if suffix == ".py":
            return UserFunction(function=f"{path.stem}:{function}", code_folder=path.parent).load()()
        return np.load(path, allow_pickle=False) if suffix == ".npy" else _read_table(path, suffix, columns, texts)
    except StageError as error:
        raise ConfigError(f"--data {name}: {error}") from error
    except Exception as error:  # a damaged file, or the user's code, may raise anything
        what = "it is empty" if suffix != ".py" and not path.stat().st_size else f"cannot be read: {_described(error)}"
        fix = "" if suffix == ".py" else ". Fix: copy the file again, or write it with numbers or texts as values"
        raise ConfigError(f"--data {name}: {what}{fix}") from error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


def _read_table(path: Path, suffix: str, columns: tuple[str, ...], kept: tuple[str, ...]) -> Any:
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        fix = "pip install pandas; the extra sklearn brings it, too"
        raise StageError(f"tables are read by pandas, which is not installed. Fix: {fix}") from error
    if TABLES[suffix] == "read_parquet":
        return pd.read_parquet(path)
    if TABLES[suffix] == "read_json":
        return _with_codes(partial(pd.read_json, path, lines=suffix == ".jsonl", convert_dates=False), kept)
    with path.open("rb") as file:
        encoding = "utf-16" if file.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8"
    try:
        texts = partial(pd.read_csv, path, header=None, dtype=str, keep_default_na=False, encoding=encoding)
        rows = texts(sep="\x1f", nrows=2).iloc[:, 0]  # each as one text
        separator = next((mark for mark in ";\t" if all(mark in row for row in rows)), ",")  # commas may be decimal
        names, points = [*texts(sep=separator, nrows=1).iloc[0]], "." if separator == "," else ".,"
        header = None if _are_values([name.replace(points[-1], ".") for name in names], columns) else "infer"
        plain = dict.fromkeys(kept, str)
        read = partial(pd.read_csv, path, sep=separator, encoding=encoding, header=header, dtype=plain)
        tables = [read(decimal=point) for point in points]
        if tables[0].iloc[:, -1:].isna().all(axis=None):  # the rows may end in a separator, and the names not
            warnings.filterwarnings("ignore", "Length of header or names", pd.errors.ParserWarning)
            tables = [read(decimal=point, index_col=False) for point in points]
    except UnicodeError as error:
        raise StageError("it is no text in UTF-8. Fix: save it as UTF-8") from error
    if header is not None:
        require_different_names(filter(None, names))
    table = max(tables, key=lambda table: len(table.select_dtypes("number").columns))
    if table.index.nlevels > 1 or table.index.dtype.kind == "f" or not table.index.is_unique:  # no names of rows
        what = f"its rows have more values than names of columns: {', '.join(names)}"
        raise StageError(f"{what}. Fix: name all columns")
    if header is None and not is_number(names[-1].replace(points[-1], ".")):
        table = table.rename(columns={table.columns[-1]: LABELS})
    return table.drop(columns="Unnamed: 0", errors="ignore")  # the rows' numbers, as pandas writes and reads them


def _with_codes(read: Callable[..., Any], kept: tuple[str, ...]) -> Any:
    """Return a table whose texts in `kept`, and those that begin with a zero, such as "00123", stay texts."""
    table, texts = read(), read(dtype=False)
    for name in texts.select_dtypes(["object", "string"]).columns:
        if name in kept or texts[name].astype(str).str.match(r"0\d").any():
            table[name] = texts[name]
    return table


def _are_values(names: Sequence[str], columns: Sequence[str]) -> bool:
    """Return whether the names of columns are a first row of numbers, and not the numbers of the columns.

    A text in the last place is the first label.
    """
    numbers, last = [*map(is_number, names)], names[-1].strip().lower()
    values = all(numbers) or (len(names) > 2 and all(numbers[:-1]) and last not in LABEL_COLUMNS)
    return values and not {*columns} & {*names} and [*names] != [str(column) for column in range(len(names))]
