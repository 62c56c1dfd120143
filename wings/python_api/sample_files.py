"""Samples as other programs keep them: an array, a table, or a function of the user's that gives batches."""

from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.core.user_code import UserFunction

TABLES = {".csv": "read_csv", ".tsv": "read_table", ".parquet": "read_parquet", ".jsonl": "read_json"}
"""Suffix of a table -> pandas' function that reads it."""
DEFAULT_FUNCTION = "samples"
KINDS = (
    f"a folder of images or .wav files, .npz (inputs by name), .npy, {', '.join(TABLES)}, or FILE.py:FUNCTION that "
    "gives batches"
)


def read_samples(name: str) -> Any:
    """Return an array, a table, or what a user's function returns; None for an `.npz` file, a folder, or nothing there.

    Args:
        name: a path, or `FILE.py:FUNCTION`; the function of `FILE.py` alone is `samples`.

    Raises:
        ConfigError: when the file is of another kind, or cannot be read.
    """
    file, _, function = name.partition(":") if ".py:" in name else (name, "", DEFAULT_FUNCTION)
    path = Path(file)
    suffix = path.suffix.lower()
    if not path.is_file() or suffix == ".npz":
        return None
    if suffix not in (".npy", ".py", *TABLES):
        raise ConfigError(f"--data {file}: a file of no known kind; expected {KINDS}")
    try:
        if suffix == ".py":
            return UserFunction(function=f"{path.stem}:{function}", code_folder=path.parent).load()()
        return np.load(path, allow_pickle=False) if suffix == ".npy" else _read_table(path, suffix)
    except StageError as error:
        raise ConfigError(f"--data {name}: {error}") from error
    except Exception as error:  # a damaged file, or the user's code, may raise anything
        raise ConfigError(f"--data {name}: cannot be read: {type(error).__name__}: {one_line(error)}") from error


def _read_table(path: Path, suffix: str) -> Any:
    import pandas as pd

    return getattr(pd, TABLES[suffix])(path, **({"lines": True} if suffix == ".jsonl" else {}))
