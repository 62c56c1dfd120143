"""The command line reference, from the parser itself."""

import argparse
from collections.abc import Iterator

from markdown_text import sentence, table

from flows.cli.commands import INVALID
from flows.cli.options import parser

COMMON_CODES = (INVALID, "130 interrupted", "143 terminated")
INTRODUCTION = """\
Every command is `gauntlet COMMAND`; in a checkout, `.venv/bin/gauntlet COMMAND`. `gauntlet --help` and `gauntlet
COMMAND --help` print the same. `GAUNTLET_HOME` names the folder of all runs; by default, `.gauntlet` in
the current folder. Defaults are in parentheses. Unless its own exit codes differ, a command ends with 2 for an invalid
configuration or arguments, 130 if interrupted, 143 if terminated.

```console
gauntlet run model.onnx --data images             # the winner among its faster and smaller forms
gauntlet diagnose model.onnx                      # faults, causes and fixes
gauntlet inspect model.onnx                       # inputs, outputs, sizes, MACs
gauntlet bench model.onnx --targets ort-cpu,openvino
gauntlet targets                                  # runtimes that work here
gauntlet show                                     # the newest run's table
gauntlet bundle --out winner.zip                  # the winner with all that it needs
gauntlet verify winner.zip                        # its digests and outputs, on any machine
gauntlet predict winner.zip image.png
gauntlet validate configs/digits-resnet18.yaml
gauntlet up                                       # Prefect, MLflow and workers
gauntlet status
gauntlet down
gauntlet sync                                     # send MLflow what it missed
gauntlet worker --pool jetson                     # race here for other machines
gauntlet clean --older-than 30 --dry-run          # what old runs would free
```
"""
EXAMPLE = "example: "


def command_line() -> str:
    """Return the page."""
    top = parser()
    blocks = ["# Command line", INTRODUCTION.rstrip(), *section(top, {})]
    return "\n\n".join(blocks) + "\n"


def section(command: argparse.ArgumentParser, known: dict[tuple[str, str], str], summary: str = "") -> Iterator[str]:
    """Yield a command's heading, its usage, its arguments and its exit codes; then those of the commands below it.

    `known` are the options of the commands before it, and where they stand: such ones are only named.
    """
    below = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    yield f"## {command.prog}"
    if summary or command.description:
        yield sentence(summary or str(command.description)).rstrip(".") + "."
    yield f"```console\n{usage(command)}\n```"
    hidden = (argparse.SUPPRESS, "show this help message and exit")
    rows = [row(action) for action in command._actions if action not in below and action.help not in hidden]
    repeated = {place: [one for one in rows if known.get(one) == place] for place in dict.fromkeys(known.values())}
    named = {place: some for place, some in repeated.items() if len(some) > 1}
    if new := [one for one in rows if known.get(one) not in named]:
        yield table(("argument", "meaning"), new)
    for place, some in named.items():
        names = ", ".join(f"{one[0].partition(' ')[0].rstrip('`')}`" for one in some)
        yield f"As [{place}](#{place.replace(' ', '-')}): {names}."
    known |= {one: command.prog for one in new if one[0].startswith("`--") and one not in known}
    example, codes = example_and_codes(command.epilog or "")
    if example:
        yield f"```console\n{example}\n```"
    if codes:
        yield sentence(codes).rstrip(".") + "."
    for action in below:
        told = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, one in action.choices.items():
            yield from section(one, known, told.get(name, ""))


def example_and_codes(epilog: str) -> tuple[str, str]:
    """Return a command's example and its own exit codes, each on one line; empty where there are none."""
    first, _, rest = epilog.partition("\n") if epilog.startswith(EXAMPLE) else ("", "", epilog)
    codes = " ".join(rest.split()).split(", ")
    return first.removeprefix(EXAMPLE), ", ".join(code for code in codes if code not in COMMON_CODES)


def usage(command: argparse.ArgumentParser) -> str:
    """Return how a command is written, on one line; what is optional and no positional argument is `[options]`."""
    shown = [action for action in command._actions if action.dest != "help" and action.help is not argparse.SUPPRESS]
    named = [action for action in shown if action.required or not action.option_strings]
    words = [written(action) if action.required else f"[{written(action)}]" for action in named]
    return " ".join([command.prog, *words, *([] if len(named) == len(shown) else ["[options]"])])


def written(action: argparse.Action) -> str:
    """Return an argument as one types it: `--set KEY.PATH=VALUE`."""
    value = str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())
    if isinstance(action, argparse._SubParsersAction):
        return f"{value} ..."
    if action.option_strings:
        return " ".join([action.option_strings[-1], *([] if action.nargs == 0 else [value])])
    return f"{value} ..." if action.nargs == "+" else value


def row(action: argparse.Action) -> tuple[str, str]:
    """Return an argument as it is written, and what it means, with its default."""
    unset = action.default in (None, False, "", [], argparse.SUPPRESS)
    value = ",".join(map(str, action.default)) if isinstance(action.default, list) else action.default
    meaning = (action.help or "").replace("%%", "%")
    return f"`{written(action)}`", meaning if unset else f"{meaning} (`{value}`)"
