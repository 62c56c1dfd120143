"""What the options of every command use. Like them, it imports nothing that takes long."""

import argparse
import textwrap
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

INVALID = "2 invalid configuration or arguments"
EXIT_CODES = f"exit codes: 0 passed, 1 a gate failed, {INVALID}, 3 a stage broke, 130 interrupted, 143 terminated"
Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"
AddCommand = Callable[..., argparse.ArgumentParser]
"""Takes the name of a command, its function as `module:function`, its help, and an epilog."""
FIND, LOOK, MODELS, USE = "find the winner", "look at runs", "look at models", "use the winner"
WATCH, SERVERS, MORE = "promote and watch", "servers and disk", "more"
GROUPS = (FIND, LOOK, MODELS, USE, WATCH, SERVERS, MORE)
"""Of the commands, in the order of `gauntlet --help`."""
Uses = Mapping[str, tuple[str, str]]
"""Command -> its group, and an example of how it is called."""


def adder(commands: Commands, package: str, uses: Uses = MappingProxyType({})) -> AddCommand:
    """Return a function that adds commands whose functions are in modules of a package."""

    def add(name: str, function: str, text: str, epilog: str | None = None) -> argparse.ArgumentParser:
        group, example = uses.get(name, (MORE, ""))
        ends = ([f"example: {example}"] if example else []) + ([textwrap.fill(epilog, 78)] if epilog else [])
        raw = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=text, epilog="\n".join(ends) or None, formatter_class=raw)
        command.set_defaults(command=f"{package}.{function}", heading=group)
        return command

    return add


def _hint(word: str, known: Iterable[str], program: str) -> str:
    import difflib  # it takes 5 ms

    near = difflib.get_close_matches(word, [*known], 1)
    return f"did you mean {near[0]!r}?" if near else f"`{program} --help` lists all"


class CommandParser(argparse.ArgumentParser):
    """Of one command; names the option that a wrong one is close to."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parse as argparse does, but exit with 2 where a word is no option or argument of this command."""
        words = () if self._subparsers else args[: args.index("--")] if "--" in args else args
        options = [word.partition("=")[0] for word in words if word.startswith("--") and " " not in word]
        wrong = [name for name in options if not any(known.startswith(name) for known in self._option_string_actions)]
        if not wrong:
            result, wrong = super().parse_known_args(args, namespace)
        if wrong:
            hint = _hint(wrong[0], self._option_string_actions, self.prog)
            self.exit(2, f"{self.prog}: error: there is no option or argument {wrong[0]!r} here; {hint}\n")
        return result, []


class GroupedParser(argparse.ArgumentParser):
    """Prints the commands in groups, and names the one that a wrong word is close to."""

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            hint = _hint(value, action.choices, self.prog)
            raise argparse.ArgumentError(action, f"there is no command {value!r}; {hint}")
        super()._check_value(action, value)

    def format_help(self) -> str:
        """Return the usage, the commands of each group, the options and the epilog."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(f"{self.description} Each command's --help has an example.")
        [commands] = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        groups = {name: command.get_default("heading") or MORE for name, command in commands.choices.items()}
        sections = {group: [c for c in commands._choices_actions if groups[c.dest] == group] for group in GROUPS}
        sections["options"] = [action for action in self._actions if action is not commands]
        for title, actions in sections.items():
            if actions:
                formatter.start_section(title)
                formatter.add_arguments(actions)
                formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()
