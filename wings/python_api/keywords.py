"""A command called from Python: its options are keywords, its home is an argument, its errors are exceptions."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from flows.cli.argument_types import input_shape
from flows.cli.main import missing_package
from flows.cli.options import parser
from flows.record.home import Home
from gauntlet.core.errors import ConfigError

ON_A_TERMINAL = ("help", "json", "dry_run")
"""Options that only change what a command prints."""


@contextmanager
def home_for(folder: "str | Path | None") -> Iterator[Home]:
    """Work in a home, by default that of the commands, and raise `ConfigError` where an extra is not installed."""
    before = os.environ.get("GAUNTLET_HOME")
    if folder is not None:
        os.environ["GAUNTLET_HOME"] = str(folder)
    try:
        yield Home.find()
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error
    except ConfigError as error:  # it says what to change; where it was noticed does not help
        raise error.with_traceback(None) from None
    finally:
        os.environ.pop("GAUNTLET_HOME", None)
        os.environ.update({} if before is None else {"GAUNTLET_HOME": before})


def options_for(command: str, keywords: Mapping[str, Any]) -> argparse.Namespace:
    """Return the options of a command from keywords: `minutes=5` is `--minutes 5`, `fresh=True` is `--fresh`.

    Lists stand for several values, dictionaries for `KEY=VALUE`. What is None has the command's default.

    Raises:
        ConfigError: for an option that the command does not have, or a value that it does not take.
    """
    one = _command(command)
    actions = {action.dest: action for action in one._actions if action.dest not in ON_A_TERMINAL}
    words, places = list[str](), list[str]()
    for name, value in keywords.items():
        if name not in actions:
            raise ConfigError(f"{command}: unknown option {name!r}; available: {', '.join(actions)}")
        action = actions[name]
        if value is None or value is False:
            continue
        if action.option_strings:
            words += _written(action, value)
        else:
            places += [str(part) for part in ([value] if isinstance(value, str | Path) else value)]
    return one.parse_args([*words, "--", *places], argparse.Namespace(**one._defaults))


def _command(name: str) -> argparse.ArgumentParser:
    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{name}: {message}")

    [commands] = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    command: argparse.ArgumentParser = commands.choices[name]
    command.error = refuse  # type: ignore[method-assign]
    return command


def _written(action: argparse.Action, value: Any) -> list[str]:
    """Return an option as it is written on the command line; one that may be repeated, once for each value."""
    option = action.option_strings[-1]
    if value is True:
        return [option]
    if not isinstance(action, argparse._AppendAction):
        return [f"{option}={_text(value)}"]
    if isinstance(value, Mapping) and action.type is input_shape:
        values = [f"{name}={'x'.join(map(str, shape))}" for name, shape in value.items()]
    elif action.type is None:
        values = settings(value)
    else:
        values = [_text(part) for part in ([value] if isinstance(value, str | Mapping) else value)]
    return [f"{option}={text}" for text in values]


def settings(value: Any) -> list[str]:
    """Return `KEY=VALUE` for each setting: of a dictionary, of a list of such texts, or of one."""
    if isinstance(value, Mapping):
        return [f"{key}={json.dumps(setting, default=str)}" for key, setting in value.items()]
    return [value] if isinstance(value, str) else [str(part) for part in value]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={str(part).lower() if isinstance(part, bool) else part}" for key, part in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
