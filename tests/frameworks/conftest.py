"""A few hundred small digits, so that an epoch takes a tenth of a second."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from finished_runs import empty_store, finished_home, home, prefect_server, run

from gauntlet.core.artifact import Artifact
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.splits import ArraySplit, Dataset, require_labels

__all__ = ["empty_store", "finished_home", "home", "prefect_server", "run"]

FRAMEWORKS = ("torch", "keras", "sklearn", "jax", "boosting")

SIZES = {"train": 193, "validation": 60, "calibration": 10, "test": 40}  # 193: the last step of an epoch has one image


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the tests of a framework whose folder was removed, and those that need all of them."""
    there = [name for name in FRAMEWORKS if importlib.util.find_spec(f"frameworks.{name}")]
    if collection_path.parent == Path(__file__).parent:
        name = collection_path.name
        needed = FRAMEWORKS if name.startswith("test_") else {name}.intersection(FRAMEWORKS)
        return None if set(needed) <= set(there) else True
    return None


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return Digits(image_size=8).load()


@pytest.fixture
def small(digits: Dataset, workspace: Callable[..., Workspace]) -> Callable[..., dict[str, Artifact]]:
    """Return a function that stores the splits, after `change(name, inputs)` has damaged them."""

    def make(change: Callable[[str, np.ndarray], None] | None = None) -> dict[str, Artifact]:
        out = workspace()
        kept = {}
        for name, size in SIZES.items():
            split = digits.splits[name]
            inputs = split.take(slice(0, size))["input"].copy()
            if change:
                change(name, inputs)
            kept[name] = out.store_file(
                ArraySplit({"input": inputs}, require_labels(split)[:size]).save(out.folder, name)
            )
        return kept

    return make
