"""The result of a benchmark as a file in docs/results, from which docs/benchmarks.md is generated (`make docs`).

A script has `--result FILE.json`; with it, it writes what it measured besides printing it.
"""

import argparse
import importlib.metadata
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field

from flows.record.environment import environment
from gauntlet.core.frozen import Frozen, Number

Topic = Literal[
    "pipeline",
    "measurement",
    "peers",
    "corpus",
    "targets",
    "serving",
    "monitoring",
    "machines",
    "containers",
]
PACKAGES = ("onnx-gauntlet", "onnxruntime-gpu", "torch")


class Figure(Frozen):
    """One number that a claim rests on."""

    name: str
    value: Number
    low: Number | None = Field(None, description="lower end of the 95 % interval, where there is one")
    high: Number | None = None
    unit: str = ""
    goal: str = Field("", description="in words; empty where none was set")
    met: bool | None = Field(None, description="whether the goal is met")

    @classmethod
    def at_most(cls, name: str, value: float, limit: float, unit: str = "", goal: str = "") -> Self:
        """Return a number with an upper limit; `goal` says it in other words."""
        words = goal or f"at most {limit:g} {unit}".strip()
        return cls(name=name, value=value, unit=unit, goal=words, met=bool(value <= limit))

    @classmethod
    def at_least(cls, name: str, value: float, limit: float, unit: str = "", goal: str = "") -> Self:
        """Return a number with a lower limit."""
        words = goal or f"at least {limit:g} {unit}".strip()
        return cls(name=name, value=value, unit=unit, goal=words, met=bool(value >= limit))

    @classmethod
    def exactly(cls, name: str, value: int, wanted: int = 0) -> Self:
        """Return a count that has to be so large."""
        return cls(name=name, value=value, goal=f"{wanted}", met=value == wanted)


class Result(Frozen):
    """One claim, and what one command measured for it."""

    topic: Topic
    claim: str = Field(description="one sentence without a number")
    command: str
    machine: str
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    versions: dict[str, str]
    conditions: str = Field("", description="what was measured, and what else the machine did")
    figures: tuple[Figure, ...] = Field(min_length=1)
    columns: tuple[str, ...] = Field((), description="of the table with the details")
    rows: tuple[tuple[str, ...], ...] = ()


class Measured(NamedTuple):
    """A result without where and when it was measured."""

    claim: str
    conditions: str
    figures: tuple[Figure, ...]
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script, which takes `--result FILE.json`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_result_option(parser)
    return parser


def add_result_option(parser: argparse.ArgumentParser) -> None:
    """Let a script take `--result FILE.json`."""
    parser.add_argument("--result", type=Path, metavar="FILE.json", help="write the result for docs/benchmarks.md, too")


def conclude(measured: Measured, topic: Topic, result: Path | None) -> int:
    """Print a result, write it where `--result` asks for it, and return 1 when a goal is missed, otherwise 0."""
    for line in (measured.columns, ["---"] * len(measured.columns), *measured.rows) if measured.rows else ():
        print("| " + " | ".join(line) + " |")
    for figure in measured.figures:
        missed = ", missed" if figure.met is False else ""
        goal = f" (goal: {figure.goal}{missed})" if figure.goal else ""
        print(f"{figure.name}: {figure.value:g} {figure.unit}".rstrip() + goal)
    if result is not None:
        write_result(result, topic=topic, **measured._asdict())
    return 1 if any(figure.met is False for figure in measured.figures) else 0


def write_result(path: Path, **measured: Any) -> None:
    """Write a result with this command, machine, date and versions; `measured` are the other fields of `Result`.

    The file's name decides the order within the topic.
    """
    here: dict[str, Any] = environment()
    instructions = ", ".join(here["instructions"])
    result = Result(
        command=_command(),
        machine=f"{here['usable_threads']} cores of {here['processor']} ({instructions}), {here['memory_gb']:.0f} GB",
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        versions={"python": here["python"], **{name: importlib.metadata.version(name) for name in PACKAGES}},
        **measured,
    )
    path.write_text(result.model_dump_json(indent=2) + "\n")


def _command() -> str:
    """Return this command without `--result` and its file."""
    script, words = Path(sys.argv[0]).resolve(), sys.argv[1:]
    place = next(place for place, word in enumerate(words) if word.startswith("--result"))
    rest = words[:place] + words[place + (1 if "=" in words[place] else 2) :]
    return shlex.join(["python", f"benchmarks/{script.relative_to(Path(__file__).resolve().parent)}", *rest])
