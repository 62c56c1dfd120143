"""`gauntlet diagnose`: the faults of a model file, their causes, and their fixes."""

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from flows.cli.report_tables import plain_table
from flows.cli.shared import Output, existing_file, plain
from gauntlet.core.errors import ConfigError
from gauntlet.reporting.text_format import counted, milliseconds, number, printable, size
from gauntlet.targets import by_name
from wings.inspection.library.diagnosis import diagnose, fix
from wings.inspection.library.diagnosis.findings import (
    ALWAYS_LISTED,
    TITLES,
    CallerHints,
    Diagnosis,
    Finding,
    FixResult,
)
from wings.inspection.library.diagnosis.target_support import TargetSupport, check_targets, onnx_targets

MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow")}


@dataclass(frozen=True)
class Examination:
    """What was found in a model; with --fix, what was done about it and is left; with --targets, what each takes."""

    before: Diagnosis
    fixed: FixResult | None
    after: Diagnosis | None
    support: tuple[TargetSupport, ...] | None


def diagnose_model(options: argparse.Namespace) -> int:
    """Diagnose, fix where asked to, print, and return the exit code: 1 when an error is left."""
    examination = examined(options)
    if options.json:
        parts = {"diagnosis": examination.before, "fix": examination.fixed, "after": examination.after}
        dumped: dict[str, Any] = {name: part.model_dump(mode="json") if part else None for name, part in parts.items()}
        dumped |= (
            {}
            if examination.support is None
            else {"targets": [row.model_dump(mode="json") for row in examination.support]}
        )
        print(json.dumps(dumped, indent=2))  # noqa: T201
    else:
        _print_all(options, examination)
    return 1 if (examination.after or examination.before).errors else 0


def diagnosed(options: argparse.Namespace, _: Console) -> Diagnosis:
    """Return what is left after the fix, or else what was found; see `examined`."""
    examination = examined(options)
    return examination.after or examination.before


def examined(options: argparse.Namespace) -> Examination:
    """Diagnose, and fix where asked to.

    Raises:
        ConfigError: when a file or a target that the options name is not there.
        StageError: when the model cannot be read.
    """
    data, constants = existing_file(options.data), existing_file(options.constants)
    hints = CallerHints(data=data, layout=options.layout, constants=constants)
    model, target = Path(options.model), Path(options.fix) if options.fix else None
    if target is not None and target.suffix != ".onnx":
        raise ConfigError(f"--fix {target}: the result needs a name that ends in .onnx")
    if target is not None and target.resolve() == model.resolve():
        raise ConfigError(f"--fix {target}: this is the model itself. Fix: write to another file")
    names = options.targets
    targets = None if names is None else [by_name(name) for name in names] or onnx_targets()
    before, fixed, after = diagnose(model, hints, options.timeout), None, None
    if target is not None:
        fixed = fix(model, target, hints, before, options.timeout)
        if any(step.kept and step.fault == "leaked_constant" for step in fixed.steps):
            hints = hints.replace(constants=None)  # bound constants are no longer inputs
        if fixed.output is not None:
            after = diagnose(target, hints, options.timeout)
    support = None
    if targets is not None:
        support = check_targets(target if after is not None and target is not None else model, targets)
    return Examination(before, fixed, after, support)


def _print_all(options: argparse.Namespace, examination: Examination) -> None:
    console = Output()
    print_diagnosis(console, examination.before)
    if examination.fixed is None:
        _print_next_step(console, options, examination.before)
    else:
        print_fixes(console, examination.fixed)
    if examination.after is not None:
        print_diagnosis(console, examination.after)
    if examination.support is not None:
        print_target_support(console, examination.support)


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print the model's facts, the findings, and what was checked without a finding."""
    opsets = ", ".join(f"opset {v}" if d == "ai.onnx" else f"{d} {v}" for d, v in diagnosis.opsets.items())
    facts = [size(diagnosis.size_bytes), opsets, f"IR {diagnosis.ir_version}", f"{number(diagnosis.nodes)} nodes"]
    if diagnosis.batches:
        facts.append(f"ran with batch {', '.join(map(str, diagnosis.batches))}")
    if diagnosis.timing is not None:
        first, later = diagnosis.timing.first_answer_ms, diagnosis.timing.steady_ms
        facts.append(f"first call {milliseconds(first)}, later calls {milliseconds(later)}")
    console.print(f"\n[bold]{plain(diagnosis.model)}[/]  {plain(', '.join(f for f in facts if f))}", highlight=False)
    for finding in diagnosis.findings:
        console.print(_finding(finding))
    for fault in ALWAYS_LISTED:
        if fault in {finding.fault for finding in diagnosis.findings}:
            continue
        if fault in diagnosis.unchecked:
            why = f"  {TITLES[fault]}: not checked: {diagnosis.unchecked[fault]}"
            console.print(Padding(Text(f"–{printable(why)[1:]}", "dim"), (0, 0, 0, 2)))
        else:
            console.print(f"  [green]✓[/] [dim]{TITLES[fault]}[/]", highlight=False)


def _finding(finding: Finding) -> Group:
    mark, style = MARKS[finding.severity]
    title = Text.assemble((f"  {mark} ", style), (TITLES[finding.fault], style))
    cause = Padding(Text(printable(finding.cause)), (0, 0, 0, 4))
    return Group(title, cause, Padding(Text.assemble(("Fix: ", "bold"), printable(finding.fix)), (0, 0, 0, 4)))


def print_fixes(console: Console, fixed: FixResult) -> None:
    """Print each fix that was tried, and where the fixed model is."""
    if not fixed.steps:
        console.print("\nNothing here can be fixed automatically; no file is written.", style="yellow")
        return
    console.print("\n[bold]Fixes[/]")
    for step in fixed.steps:
        mark, style = ("✓", "green") if step.kept else ("✗", "bold red")
        line = Text.assemble((f"{mark} ", style), (f"{TITLES[step.fault]}: ", "bold"), printable(step.done))
        if step.compared:
            error = f"largest difference {number(step.max_abs_error, 2)} to " if step.max_abs_error is not None else ""
            line.append(f"; {error or 'compared with '}{printable(step.compared)}", "dim")
        console.print(Padding(line, (0, 0, 0, 2)))
    if fixed.output is None:
        console.print("No fix was kept; no file is written.", style="bold red")
    else:
        console.print(f"Written: {plain(fixed.output)}", highlight=False, soft_wrap=True)


def _print_next_step(console: Console, options: argparse.Namespace, diagnosis: Diagnosis) -> None:
    if not diagnosis.findings:
        console.print("\n[bold green]No fault found.[/]")
        return
    warnings = len(diagnosis.findings) - len(diagnosis.errors)
    counts = [counted(n, noun) for n, noun in ((len(diagnosis.errors), "error"), (warnings, "warning")) if n]
    console.print(f"\n{', '.join(counts)}.", style="bold", highlight=False)
    if any(finding.fixable for finding in diagnosis.findings):
        hints = {name: getattr(options, name) for name in ("data", "layout", "constants")}
        words = ["gauntlet", "diagnose", options.model, "--fix", str(Path(options.model).with_suffix(".fixed.onnx"))]
        words += [word for name, value in hints.items() if value for word in (f"--{name}", value)]
        console.print(f"Fix it with: {plain(shlex.join(words))}", highlight=False, soft_wrap=True)


def print_target_support(console: Console, support: Sequence[TargetSupport]) -> None:
    """Print what each target takes of the model, and what happens to the rest."""
    table = plain_table()
    table.add_column("target", no_wrap=True)
    table.add_column("takes", no_wrap=True, justify="right")
    table.add_column("expected", overflow="fold")
    for row in support:
        takes = "" if row.nodes is None else f"{row.nodes - row.nodes_elsewhere}/{row.nodes}"
        text, style = _expected(row)
        table.add_row(row.target, takes, Text(printable(text)), style=style)
    console.print()
    console.print(table)


def _expected(row: TargetSupport) -> tuple[str, str]:
    """Return the last column of a row, and its style."""
    source = f" ({row.source})" if row.source else ""
    if row.unknown is not None:
        return f"not known here: {row.unknown}", "dim"
    if row.refused is not None:
        return f"refuses the model: {row.refused}{source}", "red"
    if not row.elsewhere:
        return f"every node runs there{source}", ""
    parts = (
        f"{counted(sum(operators.values()), 'node')} on {place}: "
        + ", ".join(f"{name} x{count}" if count > 1 else name for name, count in sorted(operators.items()))
        for place, operators in row.elsewhere.items()
    )
    return "; ".join(parts) + source, "yellow"
