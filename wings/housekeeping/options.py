"""The command of this wing; like all parsers, it imports nothing that takes long."""

from flows.cli.argument_types import at_least
from flows.cli.commands import SERVERS, Commands, adder

USES = {"clean": (SERVERS, "gauntlet clean --keep-runs 5 --dry-run")}


def add_commands(commands: Commands) -> None:
    """Add `clean`."""
    add, text = (
        adder(commands, "wings.housekeeping", USES),
        "free the disk space of old runs, and of what no kept run refers to",
    )
    clean = add("clean", "clean_command:clean_home", text)
    clean.add_argument("--keep-runs", type=at_least(0), metavar="N", help="keep the N newest runs; by default all")
    clean.add_argument("--older-than", type=float, metavar="DAYS", help="remove only runs that ended longer ago")
    clean.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
