"""docs/benchmarks.md, from the results that the scripts in benchmarks/ wrote."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown_text import anchor, table

INTRODUCTION = """\
Each claim has the command that measures it, the machine, the versions, the figure and its goal. A command with
`--result FILE.json` writes its result, and this page is generated from `docs/results/*.json`. Ratios are from
interleaved runs; intervals are at 95 %. Seconds depend on the machine and on what else it does, so compare ratios
before seconds.
"""

TOPICS = {
    "pipeline": "The pipeline itself",
    "measurement": "The measurement",
    "peers": "What users would pick instead",
    "corpus": "Models as others export them",
    "targets": "Other targets",
    "repair": "Repair",
    "serving": "Serving",
    "monitoring": "Monitoring",
    "machines": "Many models and machines",
    "containers": "Containers",
}
STANDS = {True: "met", False: "**missed**", None: ""}
FIGURE = ("what", "figure", "goal", "the goal is")

Result = dict[str, Any]


def benchmark_page(folder: Path) -> str:
    """Return the page of all results in a folder."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    results.sort(key=lambda result: list(TOPICS).index(result["topic"]))
    blocks = ["# Benchmark results", INTRODUCTION.rstrip(), "## Overview", overview(results)]
    for topic, title in TOPICS.items():
        found = [result for result in results if result["topic"] == topic]
        if found:
            blocks += [f"## {title}", *(block for result in found for block in section(result))]
    return "\n\n".join(blocks) + "\n"


def overview(results: list[Result]) -> str:
    """Return the table of all figures that have a goal."""
    rows = []
    for result in results:
        claim = f"[{result['claim']}](#{anchor(result['claim'])})"
        for one in result["figures"]:
            if one["goal"]:
                rows.append((claim, one["name"], figure(one), one["goal"], STANDS[one["met"]]))
                claim = ""  # once for all its figures
    return table(("claim", *FIGURE), rows, numbers=("figure",))


def section(result: Result) -> Iterator[str]:
    """Yield one claim: how it was measured, its figures, its details."""
    yield f"### {result['claim']}"
    yield f"```console\n{result['command']}\n```"
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    told = [("machine", result["machine"]), ("date", result["date"]), ("versions", versions)]
    told += [("conditions", result["conditions"])] if result["conditions"] else []
    yield table(("measured on", ""), told)
    figures = [(one["name"], figure(one), one["goal"], STANDS[one["met"]]) for one in result["figures"]]
    yield table(FIGURE, figures, numbers=("figure",))
    if result["rows"]:
        yield table(result["columns"], result["rows"], numbers=numeric(result["columns"], result["rows"]))


def numeric(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Return the columns whose cells are all numbers, or empty."""
    found = zip(columns, zip(*rows, strict=True), strict=True)
    return [name for name, cells in found if all(re.match(r"\W*\d|∞|$", text) for text in cells)]


def figure(one: dict[str, Any]) -> str:
    """Return a number with its interval and its unit: `1.07 [1.03, 1.12] x`."""
    value, *ends = (one[key] for key in ("value", "low", "high") if one[key] is not None)
    if isinstance(value, str):  # infinity has no decimals
        return f"{value} {one['unit']}".strip()
    decimals = max(len(f"{float(number)!r}".partition(".")[2].removesuffix("0")) for number in (value, *ends))
    told = [f"{number:.{decimals}f}" for number in (value, *ends)]
    return " ".join([told[0], *([f"[{', '.join(told[1:])}]"] if ends else []), one["unit"]]).strip()
