"""Confirm the winner in a race of its own, with the reference and its control.

The fastest of many candidates owes a part of its speed-up to luck, and of many candidates at the margin one is likely
to look proven. A fresh race of the chosen one alone decides once, whatever the number of candidates, and its estimate
has no such bias.
"""

import math
from collections.abc import Mapping

from pydantic import Field

from gauntlet.benchmarking.budget import NO_BUDGET, Budget, over_budget
from gauntlet.benchmarking.objective import BEST, BETTER
from gauntlet.benchmarking.session_options import SessionVariant
from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.core.workspace import Workspace
from tasks.benchmark import benchmark
from tasks.benchmark.config import BenchmarkConfig
from tasks.benchmark.facts import BenchmarkFacts
from tasks.select import SelectConfig, SelectFacts


class ConfirmFacts(Frozen):
    """The winner after its own race."""

    winner: str
    target: str
    session: SessionVariant | None
    reason: str
    candidate: str = Field(description="which was selected, and raced again")
    confirmed: bool
    measured: str = Field("", description="its speed-up in the second race")
    objection: str = Field("", description="why it is not confirmed")
    rows: tuple[BenchmarkRow, ...] = Field((), description="of the candidate on its chosen target")
    race: BenchmarkFacts | None = Field(None, description="None where there is nothing to confirm")


def confirm(
    config: BenchmarkConfig,
    workspace: Workspace,
    *,
    select: SelectConfig,
    selection: SelectFacts,
    models: Mapping[str, Artifact],
    golden: Artifact,
    budget: Budget = NO_BUDGET,
) -> Report[ConfirmFacts]:
    """Race the selected candidate against the reference again; unless it is proven better, the reference wins.

    `config` is that of the first race: this one has another order and no early stopping. The winner must be within the
    budget as measured here; a candidate that is, while the reference is not, needs not be better.
    """
    reference, default = next(iter(models)), config.targets[0].name
    if (selection.winner, selection.target) == (reference, default):
        facts = ConfirmFacts(
            winner=reference,
            target=default,
            session=selection.session,
            reason=selection.reason,
            candidate=reference,
            confirmed=True,
        )
        return Report(stage="confirm", facts=facts)
    raced = {name: models[name] for name in (reference, selection.winner)}
    alone = _alone(config, selection.target)
    race = benchmark(alone, workspace, models=raced, golden=golden, objective=select.objective).facts
    facts = decide(race, select, selection, budget)
    standing = select.standing(facts.candidate, _deciding(facts.rows, selection), race) if facts.rows else None
    check = select.check(
        "confirm",
        standing.proven if standing else math.nan,
        select.required_ratio(race),
        facts.reason,
        f"{facts.winner} wins; more rounds on a quieter machine may decide it",
    )
    noise = Check.of("confirm.max_aa_deviation", race.aa_deviation, "<=", config.max_aa_deviation, severity="warning")
    found, size_bytes = _rows_on(race, facts.winner, facts.target), race.result(facts.winner).size_bytes
    limits = budget.checks(facts.winner, found, size_bytes)
    return Report(stage="confirm", facts=facts, checks=(check, noise, *limits))


def decide(
    race: BenchmarkFacts, select: SelectConfig, selection: SelectFacts, budget: Budget = NO_BUDGET
) -> ConfirmFacts:
    """Return the winner after the second race."""
    chosen, base = race.result(selection.winner), race.result(race.reference)
    rows = tuple(row for row in _rows_on(race, chosen.candidate, selection.target) if row.verdict != "reference")
    over, base_over = (
        over_budget(budget.checks(result.candidate, found, result.size_bytes))
        for result, found in ((chosen, rows), (base, race.chosen_rows(race.reference)))
    )
    if not rows:
        measured, better, over = f"could not be measured: {chosen.error}", False, ""
    else:
        standing = select.standing(chosen.candidate, _deciding(rows, selection), race)
        measured, better = standing.measured, standing.beats(select.required_ratio(race))
    # A reference over the budget loses to a candidate within it, and to a better one, which fails the gate like itself.
    confirmed = bool(rows) and (better or not over) if base_over else better and not over
    default = race.session_variants[0] if race.session_variants else None
    return ConfirmFacts(
        winner=chosen.candidate if confirmed else race.reference,
        target=selection.target if confirmed else base.rows[0].target,
        session=selection.session if confirmed else default,
        reason=standing.reason(race.reference, selection.note)
        if confirmed
        else f"{chosen.candidate} was {BEST[select.objective]}, but {over or 'not proven so again'}: {measured}",
        candidate=chosen.candidate,
        confirmed=confirmed,
        measured=measured,
        objection="" if confirmed else over or f"not proven {BETTER[select.objective]} again",
        rows=rows,
        race=race,
    )


def _rows_on(race: BenchmarkFacts, candidate: str, target: str) -> tuple[BenchmarkRow, ...]:
    return tuple(row for row in race.result(candidate).rows if row.target == target)


def _deciding(rows: tuple[BenchmarkRow, ...], selection: SelectFacts) -> BenchmarkRow:
    """Return the row at the batch size that decided the selection; a model with a fixed one has no other."""
    return next((row for row in rows if row.batch == selection.batch), rows[0])


def _alone(config: BenchmarkConfig, target: str) -> BenchmarkConfig:
    """Return the plan of a race on the first target and the chosen one alone."""
    return config.replace(
        targets=tuple(t for i, t in enumerate(config.targets) if i == 0 or t.name == target),
        deploy_targets=tuple(name for name in config.deploy_targets if name == target),
        session_variants=tuple(session for session in config.session_variants if session.name == target),
        early_stopping=False,
        profile=False,
        seed=config.seed + 1,
    )
