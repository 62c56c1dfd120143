"""The table of `gauntlet diagnose --targets`."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flows.cli.report_tables import plain_table
from flows.cli.shared import counted
from gauntlet.reporting.text_format import printable
from wings.inspection.library.diagnosis.target_support import TargetSupport


def print_target_support(console: Console, support: Sequence[TargetSupport]) -> None:
    """Print what each target takes of the model, and what happens to the rest."""
    table = plain_table()
    table.add_column("target", no_wrap=True)
    table.add_column("takes", no_wrap=True, justify="right")
    table.add_column("expected", overflow="fold")
    for row in support:
        takes = "" if row.nodes is None else f"{row.nodes - row.nodes_elsewhere}/{row.nodes}"
        text, style = _expected(row)
        table.add_row(row.target, takes, Text(printable(text)), style=style)
    console.print()
    console.print(table)


def _expected(row: TargetSupport) -> tuple[str, str]:
    """Return the last column of a row, and its style."""
    source = f" ({row.source})" if row.source else ""
    if row.unknown is not None:
        return f"not known here: {row.unknown}", "dim"
    if row.refused is not None:
        return f"refuses the model: {row.refused}{source}", "red"
    if not row.elsewhere:
        return f"every node runs there{source}", ""
    parts = (
        f"{counted(sum(operators.values()), 'node')} on {place}: "
        + ", ".join(f"{name} x{count}" if count > 1 else name for name, count in sorted(operators.items()))
        for place, operators in row.elsewhere.items()
    )
    return "; ".join(parts) + source, "yellow"
