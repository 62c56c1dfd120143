"""The command line reference, from the parser itself."""

import argparse
from collections.abc import Iterator

from markdown_text import items, sentence, wrapped

from flows.cli.commands import INVALID
from flows.cli.options import parser

COMMON_CODES = (INVALID, "130 interrupted", "143 terminated")
INTRODUCTION = """\
In a checkout, write `.venv/bin/gauntlet COMMAND`. `gauntlet COMMAND --help` prints the same as this
page. `GAUNTLET_HOME` names the folder of all runs, by default `.gauntlet` in the current folder.
Arguments without brackets or dashes are required. Defaults are in parentheses. Other exit codes are
2 for an invalid configuration, arguments or data, 130 if interrupted, 143 if terminated.
"""
EXAMPLE = "example: "


def command_line() -> str:
    """Return the page."""
    top = parser()
    blocks = ["# Command line", INTRODUCTION.rstrip(), *section(top, {})]
    return "\n\n".join(blocks) + "\n"


def section(command: argparse.ArgumentParser, known: dict[tuple[str, str], str], summary: str = "") -> Iterator[str]:
    """Yield a command's heading, its arguments and its exit codes; then those of the commands below it.

    `known` are the options of the commands before it, and where they stand: such ones are only named.
    """
    below = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    yield f"## {command.prog}"
    if summary or command.description:
        yield sentence(summary or str(command.description)).rstrip(".") + "."
    hidden = (argparse.SUPPRESS, "show this help message and exit")
    shown = [action for action in command._actions if action not in below and action.help not in hidden]
    rows = [*dict.fromkeys(map(row, sorted(shown, key=lambda action: bool(action.option_strings))))]
    repeated = {place: [one for one in rows if known.get(one) == place] for place in dict.fromkeys(known.values())}
    named = {place: some for place, some in repeated.items() if len(some) > 1}
    if new := [one for one in rows if known.get(one) not in named]:
        yield items(f"{argument}: {meaning}" for argument, meaning in new)
    for place, some in named.items():
        names = ", ".join(f"{one[0].partition(' ')[0].rstrip('`')}`" for one in some)
        yield wrapped(f"As [{place}](#{place.replace(' ', '-')}): {names}.")
    known |= {one: command.prog for one in new if one[0].startswith("`--") and one not in known}
    example, codes = example_and_codes(command.epilog or "")
    if example:
        yield f"```console\n{example}\n```"
    if codes:
        yield wrapped(sentence(codes).rstrip(".") + ".")
    for action in below:
        told = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, one in action.choices.items():
            yield from section(one, known, told.get(name, ""))


def example_and_codes(epilog: str) -> tuple[str, str]:
    """Return a command's example and its own exit codes, each on one line; empty where there are none."""
    first, _, rest = epilog.partition("\n") if epilog.startswith(EXAMPLE) else ("", "", epilog)
    codes = " ".join(rest.split()).split(", ")
    return first.removeprefix(EXAMPLE), ", ".join(code for code in codes if code not in COMMON_CODES)


def written(action: argparse.Action) -> str:
    """Return an argument as one types it: `--set KEY.PATH=VALUE`."""
    value = str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())
    if isinstance(action, argparse._SubParsersAction):
        return f"{value} ..."
    if action.option_strings:
        return " ".join([action.option_strings[-1], *([] if action.nargs == 0 else [value])])
    return f"{value} ..." if action.nargs == "+" else value


def row(action: argparse.Action) -> tuple[str, str]:
    """Return an argument as it is written, in brackets if it can be left out, and what it means, with its default."""
    unset = action.default in (None, False, "", [], argparse.SUPPRESS)
    value = ",".join(map(str, action.default)) if isinstance(action.default, list) else action.default
    meaning = (action.help or "").replace("%%", "%")
    known = written(action) if action.option_strings or action.required else f"[{written(action)}]"
    needed = "required: " if action.required and action.option_strings else ""
    return f"`{known}`", needed + (meaning if unset else f"{meaning} (`{value}`)")
