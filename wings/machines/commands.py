"""The commands of this wing; like all parsers, it imports nothing that takes long."""

import argparse

from flows.cli.commands import SERVERS, Commands, adder

USES = {"worker": (SERVERS, "gauntlet worker --pool jetson")}


def add_commands(commands: Commands) -> None:
    """Add `worker` to argparse's sub-parsers."""
    text = "race targets on this machine for the runs of other machines, until Ctrl-C"
    worker = adder(commands, "wings.machines", USES)("worker", "worker:start_worker", text)
    pool = "work pool of machines like this one (`on` of a target); created if missing"
    worker.add_argument("--pool", required=True, metavar="NAME", help=pool)
    store = "where this machine has the runs' store; by default under the same path"
    worker.add_argument("--store", metavar="FOLDER", help=store)
    deploy = "only create the pool's deployment, for workers in Kubernetes or Docker"
    worker.add_argument("--deploy-only", action="store_true", help=deploy)


def add_options(commands: Commands) -> None:
    """Add the option of `clean` for the shared store."""
    if "clean" not in commands.choices:  # it is another wing's
        return
    commands.choices["clean"].add_argument(
        "--shared",
        dest="command",
        action="store_const",
        const="wings.machines.clean_shared:clean_shared_store",
        default=argparse.SUPPRESS,  # the command itself
        help="clean $GAUNTLET_STORE, for the runs of all machines",
    )
