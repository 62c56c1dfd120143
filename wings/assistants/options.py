"""The command of this wing; like all parsers, it imports nothing that takes long."""

from flows.cli.commands import SERVERS, Commands, adder

USES = {"mcp": (SERVERS, "gauntlet mcp")}


def add_commands(commands: Commands) -> None:
    """Add `mcp`."""
    text = "offer commands to an assistant over stdio (Model Context Protocol); it cannot loosen gates"
    adder(commands, "wings.assistants", USES)("mcp", "mcp_command:serve", text)
