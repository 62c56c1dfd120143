"""`gauntlet bench` on the terminal: any models on any targets, in one race."""

import argparse
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from flows.locks import HOST_LOCK, locked
from tasks.benchmark.compare import Comparison, Pair, compare
from tasks.benchmark.contender import Plan
from tasks.benchmark.sessions import described
from tasks.errors import ConfigError
from tasks.render.format import clean, milliseconds, number, percent, speedup
from tasks.render.latency_plot import plot_latency, require_picture
from tasks.run_report import BenchmarkRow
from tasks.runtime.random_inputs import random_inputs
from tasks.runtime.sandbox import run_apart
from tasks.runtime.threads import usable_threads
from tasks.statistics import Array
from tasks.targets import USUAL, Target, by_name, with_options
from tasks.targets.ort_cpu import OrtCpu

NOISY = 0.05
READING_BYTES = 8 << 30


def bench(options: argparse.Namespace) -> int:
    """Measure, print, and return the exit code: 1 when a pair ran here and is not what it says."""
    threads = options.threads or [usable_threads()]
    targets = chosen(options.targets, options.target)
    targets = limited(targets + further_sessions(options.session, threads, targets), options.memory_gb)
    models = named([Path(name) for name in options.models])
    source = _file(options.source)
    picture = Path(options.plot) if options.plot else None
    if picture is not None:
        require_picture(picture)
    samples = _samples(options, next(iter(models.values())))
    plan = Plan(
        batch_sizes=tuple(dict.fromkeys(options.batch)),
        rounds=options.rounds,
        block_ms=options.block_ms,
        threads=threads[0],
        timeout_s=options.timeout,
        seed=options.seed,
        min_calls=3,
        early_drop=options.early_drop,
    )
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    quiet = options.json or not console.is_terminal
    with (
        Progress(*columns, console=console, transient=True, disable=quiet) as bar,
        tempfile.TemporaryDirectory() as tmp,
    ):
        task = bar.add_task("starting", total=plan.rounds)
        waiting = Console(stderr=True)
        with locked(HOST_LOCK, on_wait=lambda: waiting.print("Waiting for other work of ours on this host to end ...")):
            comparison = compare(
                models,
                targets,
                samples,
                Path(tmp),
                plan,
                source=source,
                told_inputs=options.inputs or f"random, seed {options.seed}",
                say=lambda text: bar.update(task, description=clean(text)),
                on_round=lambda done: bar.update(task, completed=done),
            )
    if options.json:
        print(comparison.model_dump_json(indent=1))  # noqa: T201
    else:
        print_comparison(console, comparison)
    if picture is not None:
        draw(comparison, picture)
    if options.mlflow:
        from flows.bench_tracking import record

        where = record(comparison, options.mlflow, picture)
        if not options.json:
            console.print(f"MLflow: {where}", highlight=False, soft_wrap=True)
    return 1 if comparison.failed or comparison.reference is None else 0


def chosen(names: list[str], written: list[dict[str, str]]) -> list[Target]:
    """Return the targets by their names, of which `all` is every usual one, then those written with options.

    Raises:
        ConfigError: when there is none of a name or kind, or one has no such option or value, or is there twice.
    """
    usual = names or ([] if written else ["ort-cpu"])
    found = {t.name: t for name in usual for t in (USUAL if name == "all" else (by_name(name),))}
    for options in written:
        target = with_options(options)
        if target.name in found:
            raise ConfigError(f"--target: {target.name} is there twice; name each target once")
        found[target.name] = target
    return list(found.values())


def limited(targets: list[Target], memory_gb: float | None) -> list[Target]:
    """Return them with a limit of memory, where they state none of their own."""
    limit = int(memory_gb * 1e9) if memory_gb else None
    return [target if target.memory_bytes else target.replace(memory_bytes=limit) for target in targets]


def further_sessions(asked: list[dict[str, str]], threads: list[int], targets: list[Target]) -> list[Target]:
    """Return ort-cpu with other numbers of threads than the first, and with other options of a session.

    Args:
        asked: options of each session.
        threads: of the usual session, and of further ones.
        targets: what is raced anyway; the sessions among them must be others.

    Raises:
        ConfigError: when an option is none, or has no such value, or one asks for too many threads, or is another.
    """
    try:
        found = [OrtCpu.model_validate({"threads": n}) for n in threads[1:]]
        found += [OrtCpu.model_validate(options) for options in asked]
    except ValidationError as error:
        [first, *_] = error.errors()
        raise ConfigError(f"--session {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    own = [target for target in targets if isinstance(target, OrtCpu) and target.env is None]
    usual = [] if OrtCpu() in own else [OrtCpu()]
    described((*usual, *own, *found), threads[0], usable_threads())
    return list(found)


def named(paths: list[Path]) -> dict[str, Path]:
    """Return the models under names that tell them apart: the file's, or the whole path where two files share it."""
    for path in paths:
        _file(str(path))
    twice = next((path for path, count in Counter(path.resolve() for path in paths).items() if count > 1), None)
    if twice:
        raise ConfigError(
            f"{twice.name} is named twice; name each model once: the first is raced against itself anyway"
        )
    shared = Counter(path.stem for path in paths)
    return {path.stem if shared[path.stem] == 1 else str(path): path for path in paths}


def _file(name: str | None) -> Path | None:
    if name is not None and not Path(name).is_file():
        raise ConfigError(f"{name}: no such file")
    return Path(name) if name is not None else None


def _samples(options: argparse.Namespace, model: Path) -> dict[str, Array]:
    """Return enough samples for the largest batch, those of a file repeated where there are fewer."""
    most = max(options.batch)
    path = _file(options.inputs)
    if path is None:
        made = run_apart(
            random_inputs, model, most, dict(options.shape), options.seed,
            timeout_s=options.timeout, memory_bytes=READING_BYTES,
        )  # fmt: skip
        return made.value
    try:
        with np.load(path, allow_pickle=False) as file:
            given = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"--inputs {path}: not an .npz file of arrays ({error})") from error
    empty = [name for name, array in given.items() if array.ndim == 0 or len(array) == 0]
    if empty or not given:
        raise ConfigError(f"--inputs {path}: {f'{empty[0]!r} holds no samples' if empty else 'it is empty'}")
    return {name: np.resize(array, (most, *array.shape[1:])) for name, array in given.items()}


def draw(comparison: Comparison, path: Path) -> None:
    """Draw what was measured."""
    lines = {
        pair.name: [(p.batch, p.middle_ms, p.low_ms, p.high_ms) for p in pair.latency]
        for pair in comparison.pairs
        if pair.latency
    }
    plot_latency(
        lines,
        path,
        f"{comparison.rounds} interleaved rounds, {comparison.threads} threads; bars hold 90 % of the rounds",
    )


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the table, what is not in it and why, and how far it can be believed."""
    measured = [pair for pair in comparison.pairs if pair.status == "measured"]
    if measured:
        console.print(_table(comparison, measured))
    for pair in comparison.pairs:
        if pair in comparison.failed:
            told = "not ranked" if pair.status == "failed" else "failed"
            console.print(f"[bold red]{told}:[/] {_text(pair)}", highlight=False)
    for reason, pairs in _others(comparison).items():
        console.print(f"{', '.join(pairs)}: {escape(clean(reason))}", style="dim", highlight=False)
    machine = comparison.machine
    if machine is None:
        console.print("Nothing was measured.", style="bold red")
        return
    if comparison.fixed_batch is not None:
        console.print(
            f"The model takes batches of {comparison.fixed_batch} alone; only these were measured.", style="dim"
        )
    noise = f"the reference against itself: {percent(comparison.aa_deviation)} apart"
    company = f"other work on the machine: {number(machine.foreign_cores, 2)} cores"
    style = "yellow" if comparison.aa_deviation > NOISY else "dim"
    threads = f"{comparison.threads} threads, {comparison.rounds} rounds, inputs: {escape(comparison.inputs)}"
    console.print(f"{threads}; {noise}; {company}", style=style, highlight=False)


def _table(comparison: Comparison, measured: list[Pair]) -> Table:
    table = Table(header_style="bold")
    table.add_column("model", overflow="fold")
    table.add_column("target", no_wrap=True)
    table.add_column("precision", no_wrap=True)
    table.add_column("SQNR dB", justify="right", no_wrap=True)
    batches = sorted({row.batch for pair in measured for row in pair.rows})
    for batch in batches:
        table.add_column(f"batch {batch}", justify="right", no_wrap=True)
    for pair in measured:
        rows = {row.batch: row for row in pair.rows}
        cells = []
        for batch in batches:
            row = rows.get(batch)
            cells.append(f"{milliseconds(row.median_ms)}\n{_verdict(row)}" if row else "[red]failed[/]")
        truth = pair.truth
        words = (
            pair.model,
            pair.target,
            truth.effective if truth else "",
            number(truth.quality_db, 4) if truth else "",
        )
        table.add_row(*(escape(clean(word)) for word in words), *cells)
    return table


def _verdict(row: BenchmarkRow) -> str:
    """Return what a row says against the reference, in words for those who see no colour."""
    if row.verdict == "reference":
        return "reference"
    gain = escape(speedup(row.speedup, row.speedup_low, row.speedup_high))
    if row.dropped_after_round is not None:
        return f"[red]{gain}\nleft after round {row.dropped_after_round}[/]"
    if row.verdict == "not resolved":
        return f"{gain}\nnot resolved" + (f", {row.more_rounds} more rounds" if row.more_rounds else "")
    colour = {"faster": "green", "slower": "red"}[row.verdict]
    return f"[{colour}]{gain}\n{row.verdict}[/]"


def _others(comparison: Comparison) -> dict[str, list[str]]:
    """Return the pairs that were not tried, by reason; a target that is not here is named once."""
    found: dict[str, list[str]] = {}
    for pair in comparison.pairs:
        if pair.status in ("unavailable", "not applicable"):
            name = pair.target if pair.status == "unavailable" else pair.name
            names = found.setdefault(f"{pair.status}: {pair.reason}", [])
            names += [escape(clean(name))] if escape(clean(name)) not in names else []
    return found


def _text(pair: Pair) -> str:
    return escape(clean(f"{pair.name}: {pair.reason}"))
