"""The command of this wing; like all parsers, it imports nothing that takes long."""

from flows.cli.commands import INVALID, USE, Commands, adder

USES = {"verify": (USE, "gauntlet verify winner.zip")}


def add_commands(commands: Commands) -> None:
    """Add `verify`."""
    codes = f"exit codes: 0 verified, 1 something does not hold, {INVALID}"
    text = "prove a bundle again, without a server or a network"
    verify = adder(commands, "wings.verification", USES)("verify", "verify_command:verify_bundle", text, codes)
    verify.add_argument("bundle", metavar="BUNDLE", help="a bundle, as a .zip file or a folder")
    verify.add_argument("--key", metavar="PUB.pem", help="require a signature by this public key")
    verify.add_argument("--json", action="store_true", help="print JSON")
