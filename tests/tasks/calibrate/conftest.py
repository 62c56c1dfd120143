"""Calibrates a model on arrays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrated_recipes import Answer, calibrated

from gauntlet.core.artifact import Artifact
from gauntlet.core.workspace import Workspace


@pytest.fixture
def answer(workspace: Callable[..., Workspace], tmp_path: Path) -> Callable[..., Answer]:
    """Return a function that calibrates a model on arrays."""

    def keep(out: Workspace, name: str, labels: Any, **arrays: np.ndarray) -> Artifact:
        path = tmp_path / f"{name}.npz"
        np.savez(path, **arrays, **({} if labels is None else {"labels": labels}))
        return out.store_file(path)

    def run(model: Path, arrays: Any, *methods: Any, labels: Any = None, test: Any = None, **config: Any) -> Answer:
        out = workspace()
        arrays = arrays if isinstance(arrays, dict) else {"x": arrays}
        others = {name: values[:2] + 9 for name, values in arrays.items()} if test is None else {"x": test}
        splits = keep(out, "calibration", labels, **arrays), keep(out, "test", None, **others)
        return out, calibrated(out, out.store_file(model), *splits, *methods, **config)

    return run
