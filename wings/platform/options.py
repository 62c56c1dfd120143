"""The options of `gauntlet up`, `status` and `down`."""

from flows.cli.argument_types import port
from flows.cli.commands import SERVERS, Commands, adder

USES = {"up": (SERVERS, "gauntlet up"), "status": (SERVERS, "gauntlet status"), "down": (SERVERS, "gauntlet down")}


def add_commands(commands: Commands) -> None:
    """Add the commands."""
    add = adder(commands, "wings.platform", USES)
    up = add("up", "up_command:start_platform", "start Prefect, MLflow, the deployments and workers on this machine")
    up.add_argument("--prefect-port", type=port, help="by default 4200, or a free one")
    up.add_argument("--mlflow-port", type=port, help="by default 5000, or a free one")
    status = add("status", "up_command:show_status", "show what `up` started; exit code 1 where a part is not ready")
    status.add_argument("--json", action="store_true", help="print JSON")
    add("down", "up_command:stop_platform", "stop what `gauntlet up` started")
