"""A section of tables in every view of a report, for stages that the core does not know.

An entry point `section.NAME` is a function that takes a `RunReport` and returns a `Section`, or None without facts.
"""

from dataclasses import dataclass

from gauntlet.core.kinds import kinds
from gauntlet.core.run_report import RunReport


@dataclass(frozen=True)
class SectionTable:
    """A table of text."""

    caption: str
    headings: tuple[str, ...]
    align: str
    """A letter a column: `l` for words, which a narrow terminal folds, `r` for figures, which it does not."""
    rows: tuple[tuple[str, ...], ...]
    only_where_wide: tuple[str, ...] = ()
    """Headings of columns that a narrow terminal has no room for."""


@dataclass(frozen=True)
class Section:
    """The section; tables without rows are left out."""

    title: str
    note: str
    tables: tuple[SectionTable, ...]
    remarks: tuple[tuple[str, str], ...] = ()
    """What else is to be said, and what it is about; a terminal has seen it as warnings of the run."""


def sections(report: RunReport) -> dict[str, Section]:
    """Return the sections of a report by the names of their entry points."""
    brought = {name: section_of(report) for name, section_of in kinds("section").items()}
    return {name: section for name, section in brought.items() if section is not None}
