"""What the options of every command use. Like them, it imports nothing that takes long."""

import argparse
from collections.abc import Callable
from typing import TypeAlias

INVALID = "2 invalid configuration or arguments"
EXIT_CODES = f"exit codes: 0 passed, 1 a gate failed, {INVALID}, 3 a stage broke, 130 interrupted, 143 terminated"
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
AddCommand = Callable[..., argparse.ArgumentParser]
"""Takes the name of a command, its function as `module:function`, its help, and an epilog."""


def adder(commands: Commands, package: str) -> AddCommand:
    """Return a function that adds commands whose functions are in modules of a package."""

    def add(name: str, function: str, text: str, epilog: str | None = None) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, epilog=epilog)
        command.set_defaults(command=f"{package}.{function}")
        return command

    return add
