"""What arguments are read as: types for argparse."""

import argparse
from collections.abc import Callable, Sequence


def names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name for name in text.split(",") if name]


def at_least(least: int) -> Callable[[str], int]:
    """Return a type: whole numbers of at least `least`."""

    def number(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


def port(text: str) -> int:
    """Return the number of a port."""
    if not text.strip().isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: allowed are 1 to 65535")
    return int(text)


def input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return an input's name and the shape of a sample."""
    name, _, axes = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r}: write INPUT=3x224x224")
    return name, tuple(at_least(0)(axis) for axis in axes.split("x"))


def by_occurrence(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> list[dict[str, tuple[int, ...]]]:
    """Return the first shape of each input, then the second ones, and so on; at least one, which may be empty."""
    of = {name: [shape for other, shape in shapes if other == name] for name, _ in shapes}
    most = max(map(len, of.values()), default=1)
    return [{name: values[place] for name, values in of.items() if place < len(values)} for place in range(most)]
