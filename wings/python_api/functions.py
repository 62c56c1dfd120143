"""What the functions of `import gauntlet` do: the commands of the same names, with objects of Python for files."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from configs.schema import NORMALIZED, REFERENCE
from flows.cli.runs import close_interrupted_runs
from flows.record.home import Home
from flows.record.report_files import read_report
from gauntlet.core.errors import GateFailed
from gauntlet.core.kinds import required
from wings.python_api.keywords import home_for, options_for, settings
from wings.python_api.objects import model_file, samples_file
from wings.python_api.run_result import RunResult

SMALLEST: dict[str, Any] = {"select.objective": "size"}
QUANTIZED_ONLY: dict[str, Any] = {"optimize": [], "prune": []}


def run(model: Any, data: Any, *, sample: Any, home: str | Path | None, quiet: bool, **options: Any) -> RunResult:
    """See `gauntlet.run`."""
    with home_for(home) as place:
        from flows.cli.run import completed_run, configured, new_model_file, write_winner

        place.create()
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
    call = required("call", command, f"gauntlet.{command}")
    return call(options_for(command, keywords), Console(quiet=quiet))


def _result(home: Home, folder: Path) -> RunResult:
    return RunResult(read_report((folder / "report.json").read_bytes()), folder, home.store.root)
