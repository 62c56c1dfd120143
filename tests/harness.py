"""What several test files need to run the product as a user does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from configs.loader import load
from configs.schema import PipelineConfig
from flows.record.home import Home
from gauntlet.core.run_report import RunReport

GAUNTLET = Path(sys.executable).with_name("gauntlet")
QUICK = (
    "benchmark.batch_sizes=[1]",
    "benchmark.rounds=6",
    "benchmark.block_ms=5",
    "benchmark.restart_processes=false",
    "numerics.samples=8",
    "train.epochs=6",
)


def quick_config(*settings: str) -> PipelineConfig:
    return load("digits-small-cnn", (*QUICK, *settings))


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    return subprocess.run(
        [GAUNTLET, *arguments],
        cwd=folder,
        env={**os.environ, "GAUNTLET_HOME": str(folder / ".gauntlet"), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def latest_report(home: Home) -> RunReport:
    folder = home.finished_run()
    assert folder is not None
    return RunReport.model_validate_json((folder / "report.json").read_bytes())


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
