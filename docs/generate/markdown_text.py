"""Small pieces of Markdown that all generated pages share."""

from collections.abc import Iterable, Sequence
from textwrap import fill


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def items(texts: Iterable[str]) -> str:
    """Return a list."""
    return "\n".join(wrapped(f"- {text}", "  ") for text in texts)


def wrapped(text: str, indent: str = "") -> str:
    """Return a paragraph in lines of at most 100 characters, where its words allow it."""
    return fill(" ".join(text.split()), 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def cell(text: str) -> str:
    """Return a text as one cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def sentence(text: str) -> str:
    """Return a text with a capital letter in front."""
    return text[:1].upper() + text[1:]


def anchor(title: str) -> str:
    """Return a heading's anchor, the same on GitHub and in the built pages."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in "-_ ")
    return kept.replace(" ", "-")
