"""Names of the architectures in an installed package."""

import difflib
import importlib.util
import re
from collections.abc import Collection
from pathlib import Path

from gauntlet.onnx_model.recognition import Operators


def names_in_source(package: str, folder: str, pattern: re.Pattern[str]) -> set[str]:
    """Return all matches in a package's source files; importing the package would take seconds."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return set()
    files = (Path(spec.origin).parent / folder).glob("*.py")
    return {name for file in files for name in pattern.findall(file.read_text("utf-8"))}


def unknown_architecture(name: str, known: Collection[str]) -> ValueError:
    """Return the error for an unknown name, with the nearest known ones."""
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"available: {', '.join(known)}"
    return ValueError(f"unknown architecture; {hint}")


def operators_of(architecture: str) -> Operators:
    """Return which operators dominate a network for images, by the name of its architecture."""
    return "attention" if re.search("vit|swin", architecture) else "convolutions"
