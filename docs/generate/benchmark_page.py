"""docs/benchmarks.md: one row a claim, from the results that the scripts in benchmarks/ wrote."""

import json
from pathlib import Path
from typing import Any, get_args

from markdown_text import table

from benchmarks.results import Topic

INTRODUCTION = """\
Each claim links to its result, with all figures, conditions and versions. The command measures it
again, and writes the file with `--result FILE.json`. Ratios are from interleaved runs, intervals at
95 %. Here are all figures that miss their goals, in bold, and the first three others.
"""
TOPICS = get_args(Topic)
SHOWN = 3

Result = dict[str, Any]


def benchmark_page(folder: Path) -> str:
    """Return the page of all results in a folder."""
    results = [(path.name, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    results.sort(key=lambda named: TOPICS.index(named[1]["topic"]))
    rows = [row(name, result) for name, result in results]
    claims = table(("claim", "figures (goals)", "command", "measured on"), rows)
    return "\n\n".join(("# Benchmark results", INTRODUCTION.rstrip(), claims)) + "\n"


def row(name: str, result: Result) -> tuple[str, str, str, str]:
    """Return a claim's row: the first figures, those with a goal before the others, and all missed ones."""
    figures = sorted(result["figures"], key=lambda one: not one["goal"])
    met = [one for one in figures if one["met"] is not False][:SHOWN]
    figures = [one for one in figures if one["met"] is False or one in met]
    machine = result["machine"].partition(" (")[0].removesuffix(" Processor")
    return (
        f"[{result['claim']}](results/{name})",
        "<br>".join(map(line, figures)),
        f"`{result['command']}`",
        f"{machine}, {result['date']}",
    )


def line(one: dict[str, Any]) -> str:
    """Return a figure with its goal, in bold where the goal is missed."""
    text = f"{one['name']}: {figure(one)}" + (f" (goal: {one['goal']})" if one["goal"] else "")
    return f"**{text}**" if one["met"] is False else text


def figure(one: dict[str, Any]) -> str:
    """Return a number with its interval and its unit: `1.07 [1.03, 1.12] x`."""
    value, *ends = (one[key] for key in ("value", "low", "high") if one[key] is not None)
    if isinstance(value, str):  # infinity has no decimals
        return f"{value} {one['unit']}".strip()
    decimals = max(len(f"{float(number)!r}".partition(".")[2].removesuffix("0")) for number in (value, *ends))
    numbers = [f"{number:.{decimals}f}" for number in (value, *ends)]
    return " ".join([numbers[0], *([f"[{', '.join(numbers[1:])}]"] if ends else []), one["unit"]]).strip()
