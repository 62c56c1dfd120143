"""`gauntlet run --out FILE.onnx`: the winner's file, where the user wants it."""

from pathlib import Path

from rich.console import Console

from flows.record.home import Home
from gauntlet.core.errors import ConfigError
from gauntlet.core.run_report import RunReport
from gauntlet.onnx_model.model_file import copy_model
from gauntlet.reporting import timeline


def new_model_file(name: str | None) -> Path | None:
    """Return the path that `--out` names, before anything runs; None without it.

    Raises:
        ConfigError: when it is no .onnx file, exists, or its folder does not.
    """
    if name is None:
        return None
    path = Path(name)
    if path.suffix != ".onnx":
        raise ConfigError(
            f"--out {name}: expected a file that ends in .onnx. Fix: a bundle is written by gauntlet bundle"
        )
    if path.exists():
        raise ConfigError(f"--out {name}: it exists. Fix: remove it, or choose another file")
    if not path.parent.is_dir():
        raise ConfigError(f"--out {name}: no folder {path.parent}")
    return path


def write_winner(console: Console, report: RunReport, home: Home, target: Path) -> None:
    """Copy the winner's file, with its weights beside it if it has some; say so where there is no winner."""
    model = timeline.model_file(report, home.store.root)
    if model is None:
        text = f"--out {target}: not written, because the run has no winner"
    else:
        copy_model(model, target)
        text = f"Written: {target}, which is {report.winner}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
