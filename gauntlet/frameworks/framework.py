"""What a framework's folder brings: one record, found as the entry point `framework.NAME`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import kinds

Sample = tuple[Array, ...] | NamedArrays
"""Inputs of a model, shape (n, ...): in the order of its call, or by name."""
TakeSample = Callable[[], Sample]
"""Returns some; raises ConfigError where the user gave none."""


@dataclass(frozen=True)
class Framework:
    """A framework: its kinds of each part of a configuration, and the files that users bring of it.

    The first of `export` is the default exporter of what its kinds of `train` make, unless they say otherwise.
    """

    name: str
    train: tuple[type[Frozen], ...]
    """Classes derived from `tasks.train.base.Training`."""
    export: tuple[type[Frozen], ...]
    """Classes derived from `tasks.export.base.Exporter`."""
    target: tuple[type[Frozen], ...] = ()
    """Classes derived from `gauntlet.targets.base.FrameworkTarget`: the framework as it runs its own files."""
    prune: tuple[type[Frozen], ...] = ()
    """Classes derived from `tasks.prune.Pruning`, for the kinds of `train` that are `prunable`."""
    suffixes: Mapping[str, str] = field(default_factory=dict)
    """Suffix of a model file -> the kind of `train` that loads it."""
    archives: tuple[str, ...] = ()
    """Those suffixes whose files are zip archives."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Top-level module -> the extra that brings it."""
    recognize: Callable[[str], str | None] = lambda source: None
    """The kind of `train` for what no suffix tells; None for what is of another framework. Raises ConfigError for what
    is of this framework, but cannot be used."""
    save: Callable[[Any, TakeSample, Path], Path | None] = lambda model, sample, folder: None
    """Saves a model that Python holds into a folder, as a file that a run takes; None for an object of another
    framework. Raises StageError where the framework cannot."""
    columns: Callable[[Path, bool], tuple[str, ...]] = lambda model, trust: ()
    """The columns of the table that a file's model was fitted on, in order; none where it does not name them. Without
    the second argument, `trust`, code in the file is not run."""
    cross_validate: Callable[[int, Path, NamedArrays, Array], list[float]] | None = None
    """The accuracies on so many parts of labelled samples, by models with the settings of the one in a file."""


def frameworks() -> tuple[Framework, ...]:
    """Return the frameworks that are there."""
    return tuple(kinds("framework").values())
