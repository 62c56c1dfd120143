"""The half of the wing that knows no command line: faults and their fixes, summaries, and parts of models."""

from pathlib import Path

from gauntlet.core.errors import ConfigError


def refuse_wrong_file(path: Path) -> None:
    """Raise `ConfigError` unless the file exists and is named *.onnx."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix != ".onnx":
        raise ConfigError(f"{path}: expected a file named *.onnx")
