"""One variant of the model, as a value: what the search for candidates returns and the race takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gauntlet.core.artifact import Artifact

Status = Literal["accepted", "rejected", "unchanged", "not tried", "not decided"]


@dataclass(frozen=True)
class Candidate:
    """A candidate as it stands; the line that makes it replaces it by the next state."""

    name: str
    parent: str | None
    """The candidate whose file it was made from; None for the reference."""
    network: str
    """The candidate whose network it was made from: a pruned one, or the reference."""
    golden: Artifact | None = None
    """The outputs of that network where it is a pruned one."""
    temperature: float | None = None
    """Of that network's confidence."""
    model: Artifact | None = None
    accuracy: float | None = None
    sqnr_db: float | None = None
    differences: str = ""
    """How its predictions differ from the FP32 model's, in words."""
    status: Status = "not decided"
    reason: str = ""


def contenders_of(candidates: Iterable[Candidate]) -> dict[str, Candidate]:
    """Return the candidates that are raced, by name: those with a file that no gate has rejected, in their order."""
    return {c.name: c for c in candidates if c.status in ("accepted", "not decided") and c.model is not None}
