"""The options of `gauntlet fleet`."""

from flows.cli.argument_types import at_least
from flows.cli.commands import FIND, INVALID, Commands, adder
from flows.cli.options import add_settings

USES = {"fleet": (FIND, "gauntlet fleet models")}


def add_commands(commands: Commands) -> None:
    """Add the command."""
    codes = f"exit codes: 0 every model passed, 1 one did not, {INVALID}, 130 interrupted, 143 terminated"
    add = adder(commands, "wings.fleet", USES)
    fleet = add("fleet", "fleet_command:run_fleet", "run the pipeline for every model of a folder", codes)
    models = "model files, each with its samples in an .npz file of the same name, or YAML files; also below it"
    fleet.add_argument("folder", metavar="FOLDER", help=models)
    fleet.add_argument("--workers", type=at_least(1), default=1, metavar="N", help="models at a time; by default 1")
    fleet.add_argument("--fresh", action="store_true", help="begin anew; use no results of earlier runs")
    add_settings(fleet)
