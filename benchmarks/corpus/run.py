"""What `gauntlet run MODEL` makes of models from outside, with no configuration: a corpus of files, made by script.

    python benchmarks/corpus/run.py [NAME ...] [--folder FOLDER] [--full] [--list]

Makes the models (all, or those whose names contain one of the words), runs each on random samples, and writes
`corpus.json` and `corpus.md` into the folder. Every model must end with a winner, or with FP32 and reasons that name
accuracy or speed. Exit code 1 when a candidate was rejected for a technical reason, or a run took too long. Races are
short, because the question is what is rejected and why, not how fast the winner is; `--full` races as `gauntlet run`.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import onnx
from exported_models import EXPORTED
from outcome import inapplicable, technical_rejections
from written_models import ARGUMENTS, WRITTEN

from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from gauntlet.core.run_report import RunReport

TIMEOUT_S = 300
QUICK = (
    "benchmark.rounds=6",
    "benchmark.block_ms=10",
    "benchmark.batch_sizes=[1]",
    "benchmark.restart_processes=false",
)
QUICK += ("benchmark.max_aa_deviation=1", "benchmark.profile=false", "numerics.samples=8", "data.samples=48")


def save(make: Callable[[], onnx.ModelProto], path: Path) -> None:
    """Write a model that is written as text."""
    onnx.save(make(), path)


def main() -> int:
    """Run the corpus and print a line a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names to run; by default all")
    parser.add_argument("--folder", type=Path, default=Path("corpus"), help="for the models, the runs and the results")
    parser.add_argument("--full", action="store_true", help="race as long as gauntlet run does by default")
    parser.add_argument("--list", action="store_true", help="print the names")
    options = parser.parse_args()
    names = [n for n in (*WRITTEN, *EXPORTED) if not options.names or any(part in n for part in options.names)]
    if options.list:
        print("\n".join(names))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    home, rows = Home((options.folder / "home").resolve()), []
    with prefect_server(home):  # shared by all runs
        for name in names:
            row = run(name, options.folder, home, () if options.full else QUICK)
            rows.append(row)
            print(
                f"{name:45} {row['seconds']:6.1f} s  {row['winner'] or 'FAILED'}  {row['technical'] or ''}", flush=True
            )
            (options.folder / "corpus.json").write_text(json.dumps(rows, indent=1))
            (options.folder / "corpus.md").write_text(table(rows))
    return int(any(row["technical"] or row["seconds"] > TIMEOUT_S for row in rows))


def run(name: str, folder: Path, home: Home, settings: tuple[str, ...]) -> dict[str, Any]:
    """Make one model, run it in a process of its own, and return what became of it."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        if name in WRITTEN:
            save(WRITTEN[name], path)
        else:
            EXPORTED[name](path)
    words = [str(path), *ARGUMENTS.get(name, ()), *(word for setting in settings for word in ("--set", setting))]
    before, start = set(home.run_folders()), monotonic()
    environment = {**os.environ, "GAUNTLET_HOME": str(home.root)}
    command = [sys.executable, "-m", "flows.cli.main", "run", *words]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        error = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    except subprocess.TimeoutExpired:
        error = [f"over {TIMEOUT_S} s"]
    row: dict[str, Any] = {
        "name": name,
        "seconds": monotonic() - start,
        "winner": None,
        "size_bytes": path.stat().st_size,
    }
    reports = [f / "report.json" for f in home.run_folders() if f not in before and (f / "report.json").exists()]
    if not reports:
        return row | {"technical": {"run": error[0]}, "rejected": {}, "inapplicable": {}}
    report = RunReport.model_validate_json(reports[-1].read_bytes())
    skipped = inapplicable(report)
    return row | {
        "winner": report.winner,
        "reason": report.reason,
        "technical": technical_rejections(report),
        "inapplicable": skipped,
        "rejected": {c.name: c.reason for c in report.candidates if c.status == "rejected" and c.name not in skipped},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    lines = ["| model | winner | s | rejected | technical |", "| --- | --- | ---: | ---: | --- |"]
    for row in rows:
        technical = "; ".join(f"{name}: {reason}" for name, reason in row["technical"].items()).replace("|", "/")
        winner = row["winner"] or "failed"
        lines.append(
            f"| {row['name']} | {winner} | {row['seconds']:.0f} | {len(row['rejected'])} | {technical or 'none'} |"
        )
    faults = sum(bool(row["technical"]) for row in rows)
    smaller = sum(row["winner"] not in (None, "fp32") for row in rows)
    summary = f"{len(rows)} models: {smaller} with a smaller or faster winner, {faults} with a technical rejection."
    return "\n".join([summary, "", *lines, ""])


if __name__ == "__main__":
    sys.exit(main())
