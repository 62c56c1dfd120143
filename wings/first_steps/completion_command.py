"""`gauntlet completion`: a shell function that completes commands, options, presets and runs, from the parser."""

import argparse
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import configs
from flows.cli.options import parser

TOP = " "
"""How a line begins that has no command yet."""
RUNS = """$(ls "${GAUNTLET_HOME:-.gauntlet}/runs" 2> /dev/null | tr -dc 'a-z0-9\\n-')"""
FUNCTION = """\
_gauntlet() {
    local word="${COMP_WORDS[COMP_CWORD]}" words=
    case "${COMP_WORDS[*]:1:$((COMP_CWORD - 1))} |$word" in
%s
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o bashdefault -o default -F _gauntlet gauntlet onnx-gauntlet
"""
BEFORE = {"bash": "", "zsh": "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"}
"""Shell -> what it needs for bash's functions."""


def print_completion(options: argparse.Namespace) -> int:
    """Print the function for a shell."""
    print(BEFORE[options.shell] + FUNCTION % "\n".join(_cases(parser(), TOP)), end="")  # noqa: T201
    return 0


def _cases(command: argparse.ArgumentParser, line: str) -> Iterator[str]:
    """Yield what a line that begins in this way is completed with, after its commands and its options' values."""
    options, places, values = list[str](), list[str](), list[str]()
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _cases(below, f"{line}{name} ".lstrip())
            places += action.choices
        elif not action.option_strings:
            places += _words(action)
        elif action.choices:
            yield _case([f"*'{action.option_strings[-1]} |'"], line, action.choices)
        elif action.nargs != 0:
            values += [f"*'{option} |'" for option in action.option_strings]
        options += action.option_strings
    if values:
        yield _case(values, line, ())  # files
    yield _case(["*'|-'"], line, options)
    yield _case(["*'|'"], line, dict.fromkeys(places))


def _words(action: argparse.Action) -> list[str]:
    """Return what an argument can be; nothing for files, which the shell completes."""
    if action.choices:
        return [*action.choices]
    what = str(action.metavar or action.dest).upper()
    presets = [path.stem for path in sorted(Path(configs.__file__).parent.glob("*.yaml"))] if "CONFIG" in what else []
    return [*presets, *([RUNS] if "RUN" in what.split("|") or what in ("FIRST", "SECOND") else [])]


def _case(ends: Iterable[str], line: str, words: Iterable[str]) -> str:
    patterns = "|".join(f"{shlex.quote(line)}{end}*" for end in ends)
    return f'        {patterns}) words="{" ".join(words)}" ;;'
