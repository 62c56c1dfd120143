"""`gauntlet init`: a preset for a model, from three answers or options, inferred as `gauntlet run MODEL` does."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from configs.brought_model import is_model
from configs.loader import written
from flows.cli.run import infer, print_inferred
from flows.cli.shared import Output
from flows.record.home import Home
from gauntlet.core.errors import ConfigError

RANDOM = "random"
OBJECTIVES = {"speed": "latency", "size": "size", "memory": "memory"}
"""What matters -> the objective of a configuration."""
QUESTIONS = {
    "config": ("Model file", ""),
    "data": ("Samples: a folder of images, a file, or random", RANDOM),
    "goal": ("What matters: speed, size, memory, or the largest drop of accuracy, such as 0.01", "speed"),
}
"""Option -> its question, and the answer of an empty line."""


def init(options: argparse.Namespace) -> int:
    """Write the preset, and say how to run it.

    Raises:
        ConfigError: when an answer is missing or wrong, or the file exists.
    """
    ask_missing(options)
    if not is_model(options.config):
        raise ConfigError(f"init: {options.config}: expected the file of a model")
    options.set = [setting(options.goal)]
    options.data = None if options.data == RANDOM else options.data
    home = Home.find()
    inferred, config = infer(options, home)
    print_inferred(Output(), options.config, inferred, config)
    path = Path(options.out or f"{config.name}.yaml")
    if path.exists():
        raise ConfigError(f"{path}: it exists. Fix: remove it, or choose another file with --out")
    try:
        samples = keep_samples(inferred.values["data"], home, path.with_suffix(".npz"))
        path.write_text(written(inferred.values), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}. Fix: choose another file") from error
    print(f"Written: {path}{samples}. Run it: gauntlet run {shlex.quote(str(path))}")  # noqa: T201
    return 0


def ask_missing(options: argparse.Namespace) -> None:
    """Ask on the terminal for what the options leave out; refuse where there is no terminal."""
    missing = [name for name in QUESTIONS if getattr(options, name) is None]
    if missing and not sys.stdin.isatty():
        fix = "give MODEL, --data (or --data random) and --goal"
        raise ConfigError(f"init: there is no terminal to ask on, and something is missing. Fix: {fix}")
    for name in missing:
        question, usual = QUESTIONS[name]
        try:
            answer = input(f"{question} [{usual}]: " if usual else f"{question}: ").strip()
        except EOFError as error:
            raise ConfigError("init: the terminal was closed before the last answer") from error
        setattr(options, name, answer or usual)


def setting(goal: str) -> str:
    """Return what matters as a setting of a configuration."""
    if goal in OBJECTIVES:
        return f"select.objective={OBJECTIVES[goal]}"
    try:
        share = float(goal)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"--goal {goal}: expected {', '.join(OBJECTIVES)}, or a share from 0 to 1")
    return f"accuracy.max_accuracy_drop={share}"


def keep_samples(data: dict[str, Any], home: Home, target: Path) -> str:
    """Copy samples that were converted beside the preset, and return that for people, empty where nothing is copied.

    Those in the home's store may be removed by `clean`.
    """
    path = Path(data.get("path", "."))
    if not path.is_relative_to(home.store.root.resolve()):
        return ""
    with target.open("xb") as file:
        file.write(path.read_bytes())
    data["path"] = str(target.resolve())
    return f", with its samples in {target}"
