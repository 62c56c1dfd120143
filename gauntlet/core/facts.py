"""What a stage found out, and what it says of that to MLflow, to the page and to the run: each method is optional."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from gauntlet.core.frozen import Frozen

if TYPE_CHECKING:
    from gauntlet.core.run_report import CandidateEntry

Metrics = Mapping[str, float | None]
"""By their names in MLflow, with units; what is missing or not finite is left out there."""


@dataclass(frozen=True)
class Section:
    """What the page shows of a stage: a table, or a template of `gauntlet/reporting` filled with values."""

    title: str
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """They are also in the report in Markdown, with the notes."""
    notes: tuple[str, ...] = ()
    template: str = "table.html.j2"
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a stage says of the run as a whole; None where it says nothing."""

    metric: str | None = None
    """The primary metric of the problem."""
    labels: tuple[str, ...] | None = None
    """Of the classes."""
    winner: str | None = None
    reason: str | None = None
    batch: int | None = None
    """The batch size that decided."""
    required_speedup: float | None = None
    noise: float | None = None
    """How far the reference was from itself in the race."""
    confirmation_noise: float | None = None
    """The same in the race that confirmed the winner."""
    other_load_cores: float | None = None
    """Cores that were busy with other work during the race."""
    beside: str | None = None
    """One more note on the winner's speed-up; empty for none."""

    def then(self, later: "Outcome") -> "Outcome":
        """Return this with all that a later stage says."""
        return Outcome(**vars(self) | {name: value for name, value in vars(later).items() if value is not None})


class Facts(Frozen):
    """The base class of every stage's facts."""

    of_reference: ClassVar[bool] = False
    """Whether the stage's checks on the main line are about the reference, as those on a candidate's line are."""

    def metrics(self) -> Metrics:
        """Return what the run itself shows in MLflow, where the stage is on the main line."""
        return {}

    def quality(self) -> Metrics:
        """Return what the candidate that the stage was run for shows in MLflow; on the main line, the reference."""
        return {}

    def candidate_metrics(self) -> Mapping[str, Metrics]:
        """Return what other candidates show in MLflow, by name."""
        return {}

    def class_scores(self) -> tuple[Any, ...]:
        """Return the scores of each class, with a `label`."""
        return ()

    def changed_predictions(self) -> tuple[Any, ...]:
        """Return the samples whose predicted class the candidate changes (`Flip`)."""
        return ()

    def datasets(self) -> Mapping[str, int]:
        """Return the artifacts that are data sets, with the number of their samples."""
        return {}

    def section(self) -> Section | None:
        """Return what the page shows of the stage; None for nothing."""
        return None

    def headline(self) -> str:
        """Return the news in a few words, for the log and the page's pipeline; empty for none."""
        return ""

    def first_results(self) -> tuple[str, ...]:
        """Return what a person at the terminal wants to see before the run ends, a line each."""
        return ()

    def outcome(self) -> Outcome:
        """Return what follows for the run as a whole."""
        return Outcome()

    def of_candidate(self) -> Mapping[str, Any]:
        """Return what follows for the candidate that the stage was run for: fields of `Candidate`."""
        return {}

    def candidate_changes(self, candidates: "Mapping[str, CandidateEntry]") -> Mapping[str, Mapping[str, Any]]:
        """Return what follows for the record of candidates, by name: fields of `CandidateEntry`."""
        return {}
