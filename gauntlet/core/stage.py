"""What the seam must know of a stage before it runs it: attributes that stand where the stage is defined."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class StageTraits:
    """The attributes of a stage. Most stages have none of them."""

    measured: bool = False
    """It measures time, and runs alone among this project's work on the host."""
    still_holds: Callable[..., bool] | None = None
    """Of a stage that measures: takes the facts of the same work on this host as `known`, and the arguments of the
    stage, and returns whether they hold now. Without it, nothing of an earlier run is used."""
    process_wide: bool = False
    """It sets what a process has once (random numbers, an exporter's state, modules): threads do one at a time."""
    any_processor: bool = False
    """Its result holds on any processor. Others depend on the kernels at hand: whether INT8 sums saturate, which layout
    and which graph is fast."""

    def __call__(self, function: Function) -> Function:
        """Give a stage these attributes; a function without this decorator has none."""
        function.traits = self  # type: ignore[attr-defined]
        return function


stage = StageTraits


def traits_of(function: Callable[..., Any]) -> StageTraits:
    """Return the attributes of a stage."""
    traits: StageTraits = getattr(function, "traits", StageTraits())
    return traits
