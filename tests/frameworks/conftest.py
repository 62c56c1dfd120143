"""A few hundred small digits, so that an epoch takes a tenth of a second."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from few_samples import Change, few_samples
from finished_runs import finished_home, home, prefect_server, run

from gauntlet.core.artifact import Artifact
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.splits import Dataset

__all__ = ["finished_home", "home", "prefect_server", "run"]

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

    def make(change: Change | None = None) -> dict[str, Artifact]:
        out, splits = workspace(), few_samples(digits, SIZES, change)
        return {name: out.store_file(split.save(out.folder, name)) for name, split in splits.items()}

    return make
