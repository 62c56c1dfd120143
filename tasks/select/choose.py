"""Choose a candidate that the race proves better than the FP32 model at the objective, or else the FP32 model."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from gauntlet.core.report import Check
from gauntlet.core.run_report import CAUSE_SEPARATOR
from gauntlet.problems.accuracy_comparison import SAME_VALUES_DB
from gauntlet.race.budget import NO_BUDGET, Budget, over_budget
from gauntlet.race.confidence import median_shift_interval, rounds_to_resolve
from gauntlet.race.objective import BEST, BETTER, EQUALLY, Comparison, Objective, decides_by_speed
from tasks.benchmark.facts import BenchmarkFacts
from tasks.select.config import SelectConfig
from tasks.select.decision import Choice, Decision, Fidelity, Verdict

SAME_SIZE = 1.01
"""Files of which none is more times another's size are of one size: their names and notes differ."""
IsSlower = Callable[[str, str], bool]
"""Whether a candidate, by name, is proven slower than another one."""


class Explanations(Protocol):
    """Why candidates are slow, as a package found out behind the race."""

    def text(self, candidate: str, batch: int) -> str:
        """Return the reasons in one line; empty for a candidate without an explanation at this batch size."""


def choose(
    config: SelectConfig,
    race: BenchmarkFacts,
    *,
    explanations: Explanations | None = None,
    fidelities: Mapping[str, Fidelity] | None = None,
    budget: Budget = NO_BUDGET,
) -> tuple[Decision, tuple[Check, ...]]:
    """Choose the best candidate that is proven better than the reference by the margin; else the reference.

    Among tied candidates, the highest SQNR wins; `fidelities` has it by candidate name. With a budget, only a model
    within it wins: where the reference is over it, the fastest one within it, proven faster or not. Where none is
    within it, the gate fails.
    """
    required, reference, batch = config.required_ratio(race), race.reference, config.deciding_batch(race)
    rows = _comparisons(config, race, batch)
    limits = {n: budget.checks(n, race.chosen_rows(n), race.result(n).size_bytes) for n in rows}
    over = {name: text for name, checks in limits.items() if (text := over_budget(checks))}
    within = [name for name in rows if name not in over]
    verdicts = tuple(_judge(r.candidate, rows.get(r.candidate), race, required, explanations) for r in race.results)
    # The reference is always accepted, but wins only as the last resort or in a faster session variant.
    accepted = [v.candidate for v in verdicts if v.accepted and v.candidate in (within or rows)]
    eligible = {name: rows[name] for name in accepted if rows[name].beats(required)}
    tolerance = max(config.tie_tolerance, config.noise(race))
    sizes = {result.candidate: result.size_bytes for result in race.results}
    is_slower = partial(_is_slower, rows, race, batch, tolerance)
    order = _in_order(eligible, is_slower, _on_target(race, fidelities or {}), sizes)
    if order:
        winner, tied = order[0]
        note = _note(winner, race, tied, config.objective)
        reason = rows[winner].reason(race.base_of(winner), note)
    elif reference in within or not within:
        winner, note = reference, ""
        reason = f"no candidate is proven {BETTER[config.objective]} than {reference} by more than {required:.3g}x"
    else:
        winner = max(within, key=lambda name: float(np.nan_to_num(rows[name].ratio)))
        best = f"the {BEST[config.objective]} within the budget, which {reference} is not"
        note = f"{_note(winner, race, 1, config.objective)}; {best}"
        reason = rows[winner].reason(race.base_of(winner), note)
    decision = Decision(
        winner=winner,
        target=race.result(winner).target,
        session=race.session(winner),
        reason=reason,
        note=note,
        objective=config.objective,
        batch=batch,
        required_speedup=required,
        decisions=tuple(_with_budget(v, winner, reference, over, excludes=bool(within)) for v in verdicts),
        runners_up=tuple(_runner_up(name, race, tied, config.objective) for name, tied in order[1:]),
    )
    proven = max((comparison.proven for comparison in eligible.values()), default=1.0)
    fix = f"{winner} wins; another target or processor may gain more"
    return decision, (config.check(proven, required, reason, fix), *_none_within(limits[winner], within))


def _comparisons(config: SelectConfig, race: BenchmarkFacts, batch: int) -> dict[str, Comparison]:
    """Compare every candidate that was measured at the deciding batch size, on its target."""
    rows = {r.candidate: next((row for row in r.rows if row.batch == batch), None) for r in race.results}
    return {name: config.compare(name, row, race) for name, row in rows.items() if row is not None}


def _on_target(race: BenchmarkFacts, fidelities: Mapping[str, Fidelity]) -> dict[str, Fidelity]:
    """Return the fidelities, limited by the noise of each candidate's target."""
    exact = {race.reference: Fidelity(network=race.reference, sqnr_db=math.inf)}  # in another session variant
    own_db = {result.candidate: result.own_noise_db for result in race.results}
    return {
        name: fidelity.replace(sqnr_db=min(fidelity.sqnr_db, own_db.get(name, math.inf)))
        for name, fidelity in (exact | dict(fidelities)).items()
    }


def _with_budget(verdict: Verdict, winner: str, reference: str, over: Mapping[str, str], *, excludes: bool) -> Verdict:
    """Return a verdict with what follows from the budget; it `excludes` nobody where nobody is within it."""
    name = verdict.candidate
    if text := over.get(name):
        accepted = verdict.accepted and (name == reference or not excludes)
        return verdict.replace(accepted=accepted, reason=f"{text}; {verdict.reason}")
    if name == winner and not verdict.accepted:
        return verdict.replace(accepted=True, reason=f"within the budget, which {reference} is not; {verdict.reason}")
    return verdict


def _none_within(checks: tuple[Check, ...], within: Sequence[str]) -> tuple[Check, ...]:
    """Return the winner's budget checks, which fail where no candidate is within the budget."""
    if within:
        return checks
    return tuple(check.replace(detail=f"{check.detail}; no candidate is within the budget") for check in checks)


def _judge(
    candidate: str,
    comparison: Comparison | None,
    race: BenchmarkFacts,
    required: float,
    explanations: Explanations | None,
) -> Verdict:
    """Judge one candidate by its comparison at the deciding batch size."""
    if candidate == race.reference:
        return Verdict(candidate=candidate, accepted=True, reason="the reference")
    if comparison is None:
        reason = f"could not be measured: {race.result(candidate).error}"
        return Verdict(candidate=candidate, accepted=False, reason=reason)
    if comparison.beats(required):
        return Verdict(candidate=candidate, accepted=True, reason=comparison.measured)
    reason = _rejection(comparison, required, race)
    too_slow = decides_by_speed(comparison.objective) or comparison.is_slower
    cause = explanations.text(candidate, comparison.row.batch) if explanations and too_slow else ""
    return Verdict(candidate=candidate, accepted=False, reason=reason + (CAUSE_SEPARATOR + cause if cause else ""))


def _rejection(comparison: Comparison, required: float, race: BenchmarkFacts) -> str:
    row, better = comparison.row, BETTER[comparison.objective]
    if row.stopped_as is not None:
        stop = f"dropped after round {row.stopped_after_round}, {row.stopped_as} than {row.stopped_for}"
        return f"{stop}: {comparison.measured}"
    if comparison.is_slower:
        return f"slower: {comparison.measured}"
    with np.errstate(divide="ignore"):  # the lower end of an unbounded interval is 0
        center, low, high = np.log(np.maximum([comparison.ratio, comparison.low, comparison.high], 0)).tolist()
    fixed = math.log1p(race.resolution) if decides_by_speed(comparison.objective) else 0.0  # no rounds make it less
    of_rounds, undecided = (center, low + fixed, high - fixed), comparison.ratio > required
    missing = rounds_to_resolve(of_rounds, math.log(required) + fixed, race.rounds) if undecided else None
    more = f"; about {missing} more rounds would probably decide it" if missing else ""
    proven = row.verdict == "faster" if decides_by_speed(comparison.objective) else comparison.low > 1
    outcome = f"{better}, but not by more than {required:.3g}x" if proven else f"not proven {better}"
    return f"{outcome}: {comparison.measured}{more}"


def _note(winner: str, race: BenchmarkFacts, tied: int, objective: Objective) -> str:
    note, target, session = "", race.result(winner).target, race.session(winner)
    if race.session_variants and session is None:
        note = f", on {target}"
    elif session in race.session_variants[1:]:  # the first is the target's own
        note = f", in the session {target}"
    return note + (f"; the most exact of {tied} equally {EQUALLY[objective]} candidates" if tied > 1 else "")


def _runner_up(candidate: str, race: BenchmarkFacts, tied: int, objective: Objective) -> Choice:
    return Choice(
        candidate=candidate,
        target=race.result(candidate).target,
        session=race.session(candidate),
        note=_note(candidate, race, tied, objective),
    )


def _in_order(
    rows: Mapping[str, Comparison],
    is_slower: IsSlower,
    fidelities: Mapping[str, Fidelity],
    sizes: Mapping[str, int],
) -> list[tuple[str, int]]:
    """Return the candidates as they would be selected if none before them were there, with the numbers of tied ones."""
    order: list[tuple[str, int]] = []
    left = dict(rows)
    while left:
        order.append(_most_exact(left, is_slower, fidelities, sizes))
        del left[order[-1][0]]
    return order


def _most_exact(
    rows: Mapping[str, Comparison],
    is_slower: IsSlower,
    fidelities: Mapping[str, Fidelity],
    sizes: Mapping[str, int],
) -> tuple[str, int]:
    """Return the candidate with the highest SQNR among those tied with the best, and the number of tied ones.

    Only candidates made from the same network as the best are compared. Of equal SQNR, as of all that have the same
    values but for the order of sums, the smallest wins; of about the same size, the first, from which others are made.
    """
    best = max(rows, key=lambda name: (rows[name].ratio, rows[name].row.speedup))
    if best not in fidelities:
        return best, 1
    network = fidelities[best].network
    same_network = [n for n in rows if n in fidelities and fidelities[n].network == network]
    tied = [n for n in same_network if not is_slower(n, best)]
    noise = {n: float(fidelities[n].sqnr_db) for n in tied}
    exact = {n: db if math.isinf(db) else min(db, SAME_VALUES_DB) for n, db in noise.items()}
    equal = [n for n in tied if exact[n] == max(exact.values())]
    smallest = min(sizes[n] for n in equal)
    return next(n for n in equal if sizes[n] <= SAME_SIZE * smallest), len(tied)


def _is_slower(
    rows: Mapping[str, Comparison], race: BenchmarkFacts, batch: int, tolerance: float, name: str, best: str
) -> bool:
    """Return whether a candidate is proven worse than the best by more than the tolerance.

    Speeds are compared in the rounds that both ran: what slowed the machine slowed both, but for what disturbed them.
    """
    if not decides_by_speed(rows[name].objective):
        return rows[name].ratio < (1 - tolerance) * rows[best].ratio
    if rows[best].row.may_equal(rows[name].row, tolerance):
        return False
    times = (race.result(n).round_quartiles_ms.get(batch, ()) for n in (name, best))
    _, low, _ = median_shift_interval([math.log(own / other) for own, other in zip(*times, strict=False)])
    return low > -math.log1p(-tolerance)
