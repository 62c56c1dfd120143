"""The commands of this wing; like all parsers, it imports nothing that takes long."""

from flows.cli.commands import INVALID, USE, Commands, adder

USES = {"verify": (USE, "gauntlet verify winner.zip"), "trust": (USE, "gauntlet trust add PUB.pem")}


def add_commands(commands: Commands) -> None:
    """Add `verify` and `trust`."""
    add = adder(commands, "wings.verification", USES)
    codes = f"exit codes: 0 verified, 1 something does not hold, {INVALID}"
    text = "prove a bundle again, without a server or a network"
    verify = add("verify", "verify_command:verify_bundle", text, codes)
    verify.add_argument("bundle", metavar="BUNDLE", help="a bundle, as a .zip file or a folder")
    verify.add_argument("--key", metavar="PUB.pem", help="require a signature by this key, certificate or identity")
    verify.add_argument("--json", action="store_true", help="print JSON")
    trust = add("trust", "trust_command:list_keys", "list whose signatures bundles need")
    parts = trust.add_subparsers(metavar="add PUB.pem | list | remove FINGERPRINT")
    parts.add_parser("list", help="list the keys that count")
    added, removed = (parts.add_parser(name, help=f"{name} a key") for name in ("add", "remove"))
    added.add_argument("key", metavar="PUB.pem", help="a public key, certificates, or an identity of Sigstore (JSON)")
    added.set_defaults(command="wings.verification.trust_command:add_key")
    removed.add_argument("fingerprint", metavar="FINGERPRINT", help="as listed")
    removed.set_defaults(command="wings.verification.trust_command:remove_key")
