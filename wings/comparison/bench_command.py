"""`gauntlet bench`: any models on any targets, in one race."""

import argparse
import math
import os
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from flows.cli.argument_types import by_occurrence
from flows.cli.report_tables import folded, latency_table, plain_table
from flows.cli.shared import Output, existing_file, plain
from flows.record.home import Home
from flows.record.locks import host
from gauntlet.core.arrays import NamedArrays, read_arrays
from gauntlet.core.errors import ConfigError
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.datasets.splits import NPZ_ERRORS
from gauntlet.race.contender import Plan
from gauntlet.race.session_options import describe_sessions
from gauntlet.race.target_examiner import ModelOnTarget
from gauntlet.reporting import timeline
from gauntlet.reporting.text_format import milliseconds, number, percent, printable
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.subprocess_runner import run_in_subprocess
from gauntlet.targets import Target, by_name, default_targets, trusting, with_options
from gauntlet.targets.base import WORKER_GB
from gauntlet.targets.ort import OrtCpu
from wings.comparison.library.latency_plot import plot_latency, require_image
from wings.comparison.library.random_inputs import random_inputs
from wings.comparison.library.target_comparison import BenchResult, compare_targets

NOISY = 0.05  # deviation of the reference from itself
READING_BYTES = 8 << 30
MIN_NAME_WIDTH, SPEEDUP_WIDTH, OTHER_WIDTH = 16, 20, 23
"""Characters of a line: at least for a name, for the cell of a batch size, and for precision and SQNR."""


def bench(options: argparse.Namespace) -> int:
    """Measure, print, and return the exit code: 1 when a pair ran here and failed, or is not what it claims to be."""
    plot = Path(options.plot) if options.plot else None
    if plot is not None:
        require_image(plot)
    console = Output()
    comparison = measured(options, console)
    if options.json:
        print(comparison.model_dump_json(indent=1))  # noqa: T201
    else:
        print_comparison(console, comparison)
    if plot is not None:
        draw(comparison, plot)
    if options.mlflow:
        from wings.comparison.bench_record import record_bench  # imports MLflow, which takes seconds

        where = record_bench(comparison, options.mlflow, plot)
        if not options.json:
            console.print(f"MLflow: {where}", highlight=False, soft_wrap=True)
    return 1 if comparison.failed or comparison.reference is None or _of_other_outputs(comparison) else 0


def measured(options: argparse.Namespace, console: Console) -> BenchResult:
    """Race what the options name, with a bar on a terminal.

    Raises:
        ConfigError: when a model, a target or an option is wrong.
    """
    threads = options.threads or [usable_threads()]
    targets = resolve_targets(options.targets, options.target)
    targets += extra_sessions(options.session, threads, targets)
    if options.memory_gb:
        os.environ[WORKER_GB] = str(options.memory_gb)
    return _race(options, console, named([Path(name) for name in options.models]), targets, threads[0])


def _race(
    options: argparse.Namespace, console: Console, models: dict[str, Path], targets: list[Target], threads: int
) -> BenchResult:
    """Race every model on every target, with a bar on a terminal."""
    source, samples = existing_file(options.framework_model), _samples(options, next(iter(models.values())))
    if source and (options.trust or Home.find().store.holds(source)):
        targets = [*trusting(targets)]
    plan = Plan(
        batch_sizes=tuple(dict.fromkeys(options.batch)),
        rounds=options.rounds,
        block_ms=options.block_ms,
        threads=threads,
        timeout_s=options.timeout,
        seed=options.seed,
        min_calls=3,
        early_stopping=options.early_stopping,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    quiet = options.json or not console.is_terminal
    waiting = Console(stderr=True)
    progress = Progress(*columns, console=console, transient=True, disable=quiet)
    with progress as bar, tempfile.TemporaryDirectory() as tmp:
        task = bar.add_task("starting", total=plan.rounds)
        with host(alone=True, on_wait=lambda: waiting.print("Waiting for other onnx-gauntlet work on this host ...")):
            return compare_targets(
                models,
                targets,
                samples,
                Path(tmp),
                plan,
                framework_model=source,
                inputs_description=options.inputs or f"random, seed {options.seed}",
                say=lambda text: bar.update(task, description=printable(text)),
                on_round=lambda done: bar.update(task, completed=done),
            )


def resolve_targets(names: list[str], written: list[dict[str, str]]) -> list[Target]:
    """Return the targets with these names (`all` stands for every default one), then those written with options.

    Raises:
        ConfigError: when a name, kind, option or value is unknown, or a target is given twice.
    """
    usual = names or ([] if written else ["ort-cpu"])
    targets = {t.name: t for name in usual for t in (default_targets() if name == "all" else (by_name(name),))}
    for options in written:
        target = with_options(options)
        if target.name in targets:
            raise ConfigError(f"--target: {target.name} is given twice; name each target once")
        targets[target.name] = target
    return list(targets.values())


def extra_sessions(sessions: list[dict[str, str]], threads: list[int], targets: list[Target]) -> list[Target]:
    """Return ort-cpu with further numbers of threads (all but the first) and with the session options asked for.

    Their sessions must differ from each other and from those of `targets`, which are raced anyway.

    Raises:
        ConfigError: when an option or value is unknown, a session needs too many threads, or two sessions are the same.
    """
    try:
        extra = [OrtCpu.model_validate({"threads": n}) for n in threads[1:]]
        extra += [OrtCpu.model_validate(options) for options in sessions]
    except ValidationError as error:
        [first, *_] = error.errors()
        raise ConfigError(f"--session {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    own = [target for target in targets if isinstance(target, OrtCpu) and target.env is None]
    usual = [] if OrtCpu() in own else [OrtCpu()]
    describe_sessions((*usual, *own, *extra), threads[0], usable_threads())
    return list(extra)


def named(paths: list[Path]) -> dict[str, Path]:
    """Return the models under distinct names: the file's, or the whole path where two files share a name."""
    for path in paths:
        existing_file(str(path))
    twice = next((path for path, count in Counter(path.resolve() for path in paths).items() if count > 1), None)
    if twice:
        fix = "name each model once: the first is raced against itself anyway"
        raise ConfigError(f"{twice.name} is given twice; {fix}")
    shared = Counter(path.stem for path in paths)
    return {path.stem if shared[path.stem] == 1 else str(path): path for path in paths}


def _samples(options: argparse.Namespace, model: Path) -> NamedArrays:
    """Return enough samples for the largest batch; the samples of a file are repeated where there are fewer."""
    largest = max(options.batch)
    path = existing_file(options.inputs)
    if path is None:
        shapes, *further = by_occurrence(options.shape)
        if further:
            fix = "call it once for each size, or race them with gauntlet run"
            raise ConfigError(f"--shape {next(iter(further[0]))}: given twice; bench races one size. Fix: {fix}")
        limits = {"timeout_s": options.timeout, "memory_bytes": READING_BYTES}
        return run_in_subprocess(random_inputs, model, largest, shapes, options.seed, **limits).value
    try:
        arrays = read_arrays(path)
    except NPZ_ERRORS as error:
        raise ConfigError(f"--inputs {path}: not an .npz file of arrays ({error})") from error
    empty = [name for name, array in arrays.items() if array.ndim == 0 or len(array) == 0]
    if empty or not arrays:
        raise ConfigError(f"--inputs {path}: {f'{empty[0]!r} holds no samples' if empty else 'it is empty'}")
    return {name: np.resize(array, (largest, *array.shape[1:])) for name, array in arrays.items()}


def draw(comparison: BenchResult, path: Path) -> None:
    """Plot what was measured."""
    lines = {
        pair.name: [
            (batch, *np.percentile(medians, [50, 5, 95]).tolist()) for batch, medians in pair.round_medians_ms.items()
        ]
        for pair in comparison.pairs
        if pair.round_medians_ms
    }
    note = f"{comparison.rounds} interleaved rounds, {comparison.threads} threads; bars hold 90 % of the rounds"
    plot_latency(lines, path, note)


def print_comparison(console: Console, comparison: BenchResult) -> None:
    """Print the table, what is not in it and why, and how noisy the machine was."""
    measured = [pair for pair in comparison.pairs if pair.status == "measured"]
    if measured:
        console.print(_table(measured, console.width))
        rows = [((pair.candidate, pair.target), row) for pair in measured for row in pair.rows]
        console.print(latency_table(rows, ("model", "target"), console.width))
    for pair in comparison.pairs:
        if pair in comparison.failed:
            problem = "not ranked" if pair.status == "failed" else "failed"
            console.print(f"[bold red]{problem}:[/] {plain(f'{pair.name}: {pair.reason}')}", highlight=False)
    for name in _of_other_outputs(comparison):
        console.print(f"[bold red]not compared:[/] {plain(name)}: its outputs are not those of the first model")
    for reason, pairs in _others(comparison).items():
        console.print(f"{', '.join(pairs)}: {plain(reason)}", style="dim", highlight=False)
    machine = comparison.machine
    if machine is None:
        console.print("Nothing was measured.", style="bold red")
        return
    if comparison.fixed_batch is not None:
        console.print(f"The model takes batches of {comparison.fixed_batch} only; no other was measured.", style="dim")
    noise = f"the reference against itself: {percent(comparison.aa_deviation)} apart"
    load = machine.text(comparison.threads)
    style = "yellow" if comparison.aa_deviation > NOISY else "dim"
    threads = f"{comparison.threads} threads, {comparison.rounds} rounds, inputs: {escape(comparison.inputs)}"
    console.print(f"{threads}; {noise}; {load}", style=style, highlight=False)


def _table(measured: list[ModelOnTarget], width: int) -> Table:
    table = plain_table()
    table.add_column("model and target", no_wrap=True)
    table.add_column("precision", no_wrap=True)
    batches = sorted({row.batch for pair in measured for row in pair.rows})
    table.add_column("SQNR dB", justify="right", no_wrap=True)
    for batch in batches:
        table.add_column(f"batch {batch}", justify="right")
    room = max(MIN_NAME_WIDTH, width - OTHER_WIDTH - SPEEDUP_WIDTH * len(batches))
    for pair in measured:
        results = {row.batch: f"{milliseconds(row.median_ms)}\n{_verdict(row)}" for row in pair.rows}
        cells = [results.get(batch, "[red]failed[/]") for batch in batches]
        truth = pair.validation
        quality = (truth.effective, number(truth.quality_db, 4)) if truth else ("", "")
        name = f"{folded(pair.candidate, room)}\non {folded(pair.target, room - 3)}"
        table.add_row(*map(plain, (name, *quality)), *cells)
    return table


def _verdict(row: BenchmarkRow) -> str:
    """Return the verdict against the reference, in words that need no color."""
    if row.verdict == "reference":
        return "reference"
    gain = escape(timeline.speedup_of(row))
    if row.stopped_after_round is not None:
        return f"[red]{gain}\ndropped after round {row.stopped_after_round}[/]"
    if row.verdict == "not resolved":
        return f"{gain}\nnot resolved" + (f",\n{row.more_rounds} more rounds" if row.more_rounds else "")
    color = {"faster": "green", "slower": "red"}[row.verdict]
    return f"[{color}]{gain}\n{row.verdict}[/]"


def _of_other_outputs(comparison: BenchResult) -> list[str]:
    """Return the models on targets whose outputs are others, or have other shapes, than the reference's."""
    known = ((pair, pair.validation) for pair in comparison.pairs if pair.status == "measured")
    return [pair.name for pair, found in known if found is not None and math.isnan(found.quality_db)]


def _others(comparison: BenchResult) -> dict[str, dict[str, None]]:
    """Return the pairs that were not tried, by reason; a target that is unavailable here is named once."""
    pairs: dict[str, dict[str, None]] = {}  # the inner ones are ordered sets
    for pair in comparison.pairs:
        if pair.status in ("unavailable", "not applicable"):
            name = pair.target if pair.status == "unavailable" else pair.name
            pairs.setdefault(f"{pair.status}: {pair.reason}", {})[plain(name)] = None
    return pairs
