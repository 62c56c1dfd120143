"""What the functions of `import gauntlet` do: commands of the same names; options are keywords, errors exceptions."""

import argparse
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from configs.schema import NORMALIZED, REFERENCE
from flows.cli.argument_types import input_shape
from flows.cli.main import missing_package
from flows.cli.options import parser
from flows.cli.runs import close_interrupted_runs
from flows.record.home import Home
from flows.record.report_files import read_report
from gauntlet.core.errors import ConfigError, GateFailed
from gauntlet.core.kinds import required
from gauntlet.runtime.resources import environment_variables
from wings.python_api.objects import model_file, samples_file
from wings.python_api.run_result import RunResult

SMALLEST: dict[str, Any] = {"select.objective": "size"}
QUANTIZED_ONLY: dict[str, Any] = {"optimize": [], "prune": []}


def run(model: Any, data: Any, *, sample: Any, home: str | Path | None, quiet: bool, **options: Any) -> RunResult:
    """See `gauntlet.run`."""
    with home_for(home) as place, place.kept():
        from flows.cli.run import completed_run, configured, new_model_file, write_winner

        data = (
            deque(data) if isinstance(data, Iterator) else data
        )  # the model's shapes and its samples are read from it
        source = model_file(model, data if sample is None else sample, place.store)
        if not isinstance(data, str | Path):  # a file is read by the command
            by = {key: options.pop(key, None) for key in ("group", "time")}
            data = samples_file(data, source, place.store, **by)
        keywords = {"config": source, "data": data if data is None else str(data), **options}
        parsed, console = options_for("run", keywords), Console(quiet=quiet)
        out = new_model_file(parsed.out)
        config, inferred = configured(parsed, place, console)
        folder, error = completed_run(config, inferred, place, console, parsed)
        if error is not None:
            error.add_note(f"Its report is gauntlet.show({folder.name!r}).report")
            raise error.with_traceback(None) from None
        result = _result(place, folder)
        if out is not None:
            write_winner(console, result.details, place, out)
        return result


def quantize(model: Any, data: Any, **options: Any) -> RunResult:
    """See `gauntlet.quantize`."""
    options["set"] = [*settings(SMALLEST), *settings(options.get("set") or ()), *settings(QUANTIZED_ONLY)]
    result = run(model, data, **{"sample": None, "home": None, "quiet": False, **options})
    if result.details.winner in (REFERENCE, NORMALIZED):
        raise GateFailed(
            f"quantize: {result.details.reason}. Fix: gauntlet.show({result.details.run_id!r}).table has why each "
            'quantized file lost. For a smaller file that is slower, set a limit: set={"budget.max_size_mb": 5}'
        )
    return result


def show(run: str | None, *, home: str | Path | None) -> RunResult:
    """See `gauntlet.show`."""
    with home_for(home) as place:
        close_interrupted_runs(place)
        return _result(place, place.require_run(run))


def bench(
    models: str | Path | Sequence[str | Path], inputs: Any, *, home: str | Path | None, quiet: bool, **options: Any
) -> Any:
    """See `gauntlet.bench`."""
    with home_for(home) as place:
        paths = [str(model) for model in ([models] if isinstance(models, str | Path) else models)]
        samples = samples_file(inputs, next(iter(paths), ""), place.store)
        return _called("bench", {"models": paths, "inputs": samples, **options}, quiet=quiet)


def diagnose(model: Any, data: Any, *, home: str | Path | None, **options: Any) -> Any:
    """See `gauntlet.diagnose`."""
    with home_for(home) as place:
        file = model_file(model, data, place.store)
        return _called("diagnose", {"model": file, "data": samples_file(data, file, place.store), **options})


def _called(command: str, keywords: dict[str, Any], *, quiet: bool = False) -> Any:
    """Return the result of another wing's command; raise `ConfigError` where that wing was removed."""
    return required("call", command, f"gauntlet.{command}")(options_for(command, keywords), Console(quiet=quiet))


def _result(home: Home, folder: Path) -> RunResult:
    return RunResult(read_report(folder / "report.json"), folder, home.store.root)


ON_A_TERMINAL = ("help", "json", "dry_run")
"""Options that only change what a command prints."""


@contextmanager
def home_for(folder: "str | Path | None") -> Iterator[Home]:
    """Work in a home, by default that of the commands, and raise `ConfigError` where an extra is not installed."""
    try:
        with environment_variables({} if folder is None else {"GAUNTLET_HOME": str(folder)}):
            yield Home.find()
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error
    except ConfigError as error:  # it says what to change; where it was noticed does not help
        raise error.with_traceback(None) from None


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
