"""Confirm the winner in a race of its own, with the reference and its control.

The fastest of many candidates owes a part of its speed-up to luck, and of many candidates at the margin one is likely
to look proven. A fresh race of the chosen one alone decides once, whatever the number of candidates, and its estimate
has no such bias. Where it is not proven again, the next candidate in the order of the selection is raced. Each of these
races is one more chance to be lucky, so they share the risk of a single one: the more of them there may be, the higher
is the confidence of each, and the more rounds it has.

A race that was disturbed is repeated once: its control is off, or its interval lies above that of the first race. If it
is disturbed again, the interval covers the first race, too, and of two estimates that are apart the smaller one stands.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.core.workspace import Workspace
from gauntlet.race.budget import NO_BUDGET, Budget, over_budget
from gauntlet.race.confidence import median_shift_interval, rounds_for, shared_confidence
from gauntlet.race.objective import BEST, BETTER
from tasks.benchmark import benchmark
from tasks.benchmark.config import BenchmarkConfig
from tasks.benchmark.facts import BenchmarkFacts
from tasks.benchmark.other_targets import load_check
from tasks.select.config import SelectConfig
from tasks.select.decision import Choice, Confirmation, Decision, OverNormalized

DISTURBED = "other work disturbed the winner's own race; the interval of its speed-up covers the first race, too"
MAX_CONFIRMATIONS = 3
"""Candidates that are raced again, best first, until one is confirmed; they share one risk."""


def confirm(
    config: SelectConfig,
    first: BenchmarkConfig,
    workspace: Workspace,
    *,
    decision: Decision,
    models: Mapping[str, Artifact],
    golden: Artifact,
    normalized: Mapping[str, Artifact],
    budget: Budget = NO_BUDGET,
    limit_s: float | None = None,
    first_rows: Mapping[str, tuple[BenchmarkRow, ...]] = MappingProxyType({}),
) -> tuple[Decision, tuple[Check, ...]]:
    """Race the chosen candidate against the reference again, and the next one unless it is proven better.

    The reference wins when none is. `first` is the plan of the first race: these do not stop early. The winner must be
    within the budget as measured here; a candidate that is, while the reference is not, needs not be better.
    `normalized` runs in the same rounds. `first_rows` are those of the first race by candidate. With `limit_s`, a race
    takes up to half of that, and none begins that would end later.
    """
    reference = next(iter(models))
    if limit_s is not None:
        config = config.replace(confirm_budget_s=min(config.confirm_budget_s, limit_s))

    def race_again(choice: Choice, confidence: float) -> Confirmation:
        raced = {name: models[name] for name in (reference, choice.candidate)} | dict(normalized)
        alone = first.alone(choice.target, rounds_for(confidence, first.rounds))
        before = tuple(row for row in first_rows.get(choice.candidate, ()) if row.target == choice.target)

        def once() -> BenchmarkFacts:
            return benchmark(
                alone,
                workspace,
                models=raced,
                golden=golden,
                objective=config.objective,
                confidence=confidence,
                required_speedup=config.min_speedup if first.early_stopping else None,
                limit_s=None if limit_s is None else limit_s / 2,
            ).facts

        race, disturbed = undisturbed(once, choice, before, first.max_aa_deviation, config.confirm_budget_s)
        judged = judge(race, config, choice, decision.batch, budget, before if disturbed else ())
        return judged.replace(confidence=confidence)

    decision = confirm_in_order(config, decision, race_again)
    final = _final(decision.confirmations)
    race, proven = final.race, math.nan
    if final.rows:
        proven = config.compare(final.candidate, _deciding(final.rows, decision.batch), race).proven
    fix = f"{decision.winner} wins; more rounds on a quieter machine may decide it"
    check = config.check(proven, config.required_ratio(race), decision.reason, fix)
    noise = Check.of(
        "select.max_aa_deviation", race.aa_deviation, "<=", first.max_aa_deviation, severity="warning"
    ).explained(DISTURBED, "run again while nothing else is at work, or race longer: benchmark.rounds")
    load = load_check(race.machine, race.threads, "select.disturbed")
    rows, size_bytes = _rows_on(race, decision.winner, decision.target), race.result(decision.winner).size_bytes
    disturbed = () if load.passed else (load,)
    return decision, (check, noise, *disturbed, *budget.checks(decision.winner, rows, size_bytes))


def undisturbed(
    race_once: Callable[[], BenchmarkFacts],
    choice: Choice,
    before: tuple[BenchmarkRow, ...],
    max_aa_deviation: float,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[BenchmarkFacts, bool]:
    """Return a race, repeated once if it was disturbed and the time suffices, and whether it was disturbed at last."""

    def is_disturbed(race: BenchmarkFacts) -> bool:
        highest = {row.batch: row.speedup_high for row in before}
        rows = _rows_on(race, choice.candidate, choice.target)
        above = any(row.speedup_low > highest.get(row.batch, math.inf) for row in rows)
        return above or not race.aa_deviation <= max_aa_deviation

    began = clock()
    race = race_once()
    if is_disturbed(race) and 2 * (clock() - began) <= budget_s:
        race = race_once()
    return race, is_disturbed(race)


def confirm_in_order(
    config: SelectConfig,
    decision: Decision,
    race_again: Callable[[Choice, float], Confirmation],
    clock: Callable[[], float] = time.monotonic,
) -> Decision:
    """Race one candidate after another again until one is confirmed, no more than the configuration allows.

    `race_again` takes a choice and the confidence of its interval. A race is not begun if one
    as long as the longest so far would exceed the time budget.
    """
    choices = decision.choices[:MAX_CONFIRMATIONS]
    began, longest = clock(), 0.0
    raced: list[Confirmation] = []
    for place, confidence in enumerate(shared_confidence(len(choices))):
        start = clock()
        if raced and start - began + longest > config.confirm_budget_s:
            break
        raced.append(race_again(choices[place], confidence))
        longest = max(longest, clock() - start)
        if raced[-1].confirmed:
            break
    left = [] if raced[-1].confirmed else [choice.candidate for choice in decision.choices[len(raced) :]]
    return _concluded(decision, raced, left)


def _final(raced: Sequence[Confirmation]) -> Confirmation:
    """Return the confirmed candidate, or the chosen one that was not."""
    return raced[-1] if raced[-1].confirmed else raced[0]


def _concluded(decision: Decision, raced: Sequence[Confirmation], not_tried: Sequence[str]) -> Decision:
    """Return the decision with what became of the candidates.

    Where none is confirmed, the reference wins by what was measured of it beside the chosen candidate.
    """
    final = _final(raced)
    others = "; ".join(f"{c.candidate} was {c.objection}: {c.measured}" for c in raced if c is not final)
    left = f"not raced again, because the confirmation had no more races or time left: {', '.join(not_tried)}"
    parts = [final.reason]
    parts += [f"raced again before it, {others}" if final.confirmed else f"nor were others proven: {others}"] * bool(
        others
    )
    parts += [left] * bool(not_tried)
    race = final.race
    default = race.session_variants[0] if race.session_variants else None
    return decision.replace(
        winner=final.candidate if final.confirmed else race.reference,
        target=final.target if final.confirmed else race.reference_rows[0].target,
        session=final.session if final.confirmed else default,
        reason="; ".join(parts),
        confirmations=tuple(raced),
        not_tried=tuple(not_tried),
    )


def judge(
    race: BenchmarkFacts,
    config: SelectConfig,
    choice: Choice,
    batch: int,
    budget: Budget = NO_BUDGET,
    covered: tuple[BenchmarkRow, ...] = (),
) -> Confirmation:
    """Return whether a candidate is confirmed by its own race, at the batch size that decided the first.

    The intervals cover those of the rows in `covered`, by batch size.
    """
    chosen, base = race.result(choice.candidate), race.result(race.reference)
    other = {row.batch: row for row in covered}
    rows = tuple(
        row.covering(other[row.batch], min(row.speedup, other[row.batch].speedup)) if row.batch in other else row
        for row in _rows_on(race, chosen.candidate, choice.target)
        if row.verdict != "reference"
    )
    over, base_over = (
        over_budget(budget.checks(result.candidate, own, result.size_bytes))
        for result, own in ((chosen, rows), (base, race.chosen_rows(race.reference)))
    )
    beside, won = _over_normalized(race, choice, batch), ""
    if not rows:
        measured, better, over = f"could not be measured: {chosen.error}", False, ""
    else:
        comparison = config.compare(chosen.candidate, _deciding(rows, batch), race)
        measured, better = comparison.measured, comparison.beats(config.required_ratio(race))
        won = comparison.reason(race.base_of(chosen.candidate), choice.note) + (f"; {beside}" if beside else "")
    # A reference over the budget loses to a candidate within it, and to a better one, which fails the gate like itself.
    confirmed = bool(rows) and (better or not over) if base_over else better and not over
    who = chosen.candidate if chosen.candidate != race.reference else f"{chosen.candidate} on {choice.target}"
    lost = f"{who} was {BEST[config.objective]}, but {over or 'not proven so again'}: {measured}"
    return Confirmation(
        **dict(choice),
        confirmed=confirmed,
        reason=won if confirmed else lost,
        measured=measured,
        objection="" if confirmed else over or f"not proven {BETTER[config.objective]} again",
        rows=rows,
        race=race,
        over_normalized=beside,
    )


def _over_normalized(race: BenchmarkFacts, choice: Choice, batch: int) -> OverNormalized | None:
    """Return the chosen candidate's speed over that of the normalized file, if both differ and were measured."""
    chosen = race.result(choice.candidate)
    other = next((r for r in race.results if r.candidate not in (race.reference, chosen.candidate)), None)
    if other is None or not (other.rows and chosen.rows) or chosen.target != choice.target:
        return None
    if _deciding(other.rows, batch).verdict == "not resolved":
        return None
    own, base = _deciding(chosen.rows, batch), _deciding(other.rows, batch)
    pairs = zip(other.round_quartiles_ms[own.batch], chosen.round_quartiles_ms[own.batch], strict=False)
    shift = median_shift_interval([math.log(base_ms / chosen_ms) for base_ms, chosen_ms in pairs])
    center, low, high = np.exp(shift).tolist()
    if own.mark or base.mark:  # other work disturbed these rounds
        center, low, high = own.over(base)
    return OverNormalized(normalized=other.candidate, speedup=center, speedup_low=low, speedup_high=high)


def _rows_on(race: BenchmarkFacts, candidate: str, target: str) -> tuple[BenchmarkRow, ...]:
    return tuple(row for row in race.result(candidate).rows if row.target == target)


def _deciding(rows: tuple[BenchmarkRow, ...], batch: int) -> BenchmarkRow:
    """Return the row at the batch size that decided the selection; a model with a fixed one has no other."""
    return next((row for row in rows if row.batch == batch), rows[0])
