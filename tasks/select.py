"""Select the winner: a candidate that is proven better than the FP32 model at the objective, or else the FP32 model."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from gauntlet.benchmarking.budget import NO_BUDGET, Budget, over_budget
from gauntlet.benchmarking.confidence import rounds_to_resolve
from gauntlet.benchmarking.objective import (
    BEST,
    BETTER,
    EQUALLY,
    Objective,
    Standing,
    decides_by_speed,
    deciding_batch,
    memory_deviation,
)
from gauntlet.benchmarking.session_options import SessionVariant
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import CAUSE_SEPARATOR, BenchmarkRow
from gauntlet.core.workspace import Workspace
from tasks.benchmark.facts import BenchmarkFacts
from tasks.explain import ExplainFacts


class SelectConfig(Frozen):
    """When a candidate is selected over the reference."""

    objective: Objective = Field(
        "latency",
        description="what the winner is best at; latency: a call at `batch`; throughput: samples a second, at FP32's "
        "best batch size; size: the file; memory: the peak of the process. The last two must not be proven slower",
    )
    batch: int = Field(1, ge=1, description="the deciding batch size; one of benchmark.batch_sizes")
    min_speedup: float = Field(1.05, ge=1, description="the lower end of the speed-up's interval must exceed this")
    min_reduction: float = Field(
        1.05, ge=1, description="for size and memory: how many times smaller than FP32 the winner must be proven to be"
    )
    tie_tolerance: float = Field(0.02, ge=0, lt=1, description="within this share of the best, the best SQNR wins")
    require_speedup: bool = Field(False, description="whether the run fails when no candidate is fast enough")

    @property
    def severity(self) -> Literal["error", "warning"]:
        """How severe it is that no candidate is fast enough."""
        return "error" if self.require_speedup else "warning"

    def required_ratio(self, race: BenchmarkFacts) -> float:
        """Return the ratio to exceed: the margin, or the noise where that is larger; NaN stays NaN."""
        least = self.min_speedup if decides_by_speed(self.objective) else self.min_reduction
        return float(np.maximum(least, 1 + self.noise(race)))

    def noise(self, race: BenchmarkFacts) -> float:
        """Return how far the reference is from itself at the objective, by the A/A control; a file's size is exact."""
        if decides_by_speed(self.objective):
            return race.aa_deviation
        return memory_deviation(race.control) if self.objective == "memory" else 0.0

    def deciding_batch(self, race: BenchmarkFacts) -> int:
        """Return the batch size that decides in a race."""
        return deciding_batch(self.objective, self.batch, race.reference_rows)

    def standing(self, candidate: str, row: BenchmarkRow, race: BenchmarkFacts) -> Standing:
        """Return how a candidate compares with the reference at the objective."""
        sizes = (race.result(name).size_bytes for name in (candidate, race.reference))
        return Standing.of(self.objective, row, *sizes)

    def check(self, stage: str, proven: float, required: float, reason: str, fix: str) -> Check:
        """Return a stage's check of the ratio by which its winner is proven better."""
        name = f"{stage}.min_speedup" if decides_by_speed(self.objective) else f"{stage}.min_reduction"
        return Check.of(name, proven, ">", required, reason, fix, unit="x", severity=self.severity)


class Decision(Frozen):
    """Whether the race accepts one candidate, and why."""

    candidate: str
    accepted: bool
    reason: str


class SelectFacts(Frozen):
    """The winner, and the decision on each candidate."""

    winner: str
    target: str = Field("", description="target of the winner: ort-cpu, a session variant of it, or another target")
    session: SessionVariant | None = Field(None, description="session of the winner; None on another target")
    reason: str
    note: str = Field("", description="the end of the reason: where the winner runs, and with how many it is tied")
    objective: Objective = "latency"
    batch: int = Field(1, description="the batch size that decided")
    required_speedup: Number = Field(
        description="ratio in the objective to exceed: the configured one, or the noise where that is larger"
    )
    decisions: tuple[Decision, ...]

    def decision(self, candidate: str) -> Decision:
        """Return the decision on one candidate."""
        return next(d for d in self.decisions if d.candidate == candidate)


class Fidelity(Frozen):
    """SQNR of a candidate against the network that it was made from; comparable only within one network."""

    network: str
    sqnr_db: Number


def select(
    config: SelectConfig,
    workspace: Workspace,
    *,
    race: BenchmarkFacts,
    explanations: ExplainFacts | None = None,
    fidelities: Mapping[str, Fidelity] | None = None,
    budget: Budget = NO_BUDGET,
) -> Report[SelectFacts]:
    """Select the best candidate that is proven better than the reference by the margin; else the reference.

    Among tied candidates, the highest SQNR wins; `fidelities` has it by candidate name. With a budget, only a model
    within it wins: where the reference is over it, the fastest one within it, proven faster or not. Where none is
    within it, the gate fails.
    """
    required, reference, batch = config.required_ratio(race), race.reference, config.deciding_batch(race)
    rows = _standings(config, race, batch)
    limits = {n: budget.checks(n, race.chosen_rows(n), race.result(n).size_bytes) for n in rows}
    over = {name: text for name, checks in limits.items() if (text := over_budget(checks))}
    within = [name for name in rows if name not in over]
    decisions = tuple(_decide(r.candidate, rows.get(r.candidate), race, required, explanations) for r in race.results)
    # The reference is always accepted, but wins only as the last resort or in a faster session variant.
    accepted = [d.candidate for d in decisions if d.accepted and d.candidate in (within or rows)]
    eligible = {name: rows[name] for name in accepted if rows[name].beats(required)}
    if eligible:
        tolerance = max(config.tie_tolerance, config.noise(race))
        winner, tied = _most_exact(eligible, tolerance, _on_target(race, fidelities or {}))
        note = _note(winner, race, tied, config.objective)
        reason = rows[winner].reason(reference, note)
    elif reference in within or not within:
        winner, note = reference, ""
        reason = f"no candidate is proven {BETTER[config.objective]} than {reference} by more than {required:.3g}x"
    else:
        winner = max(within, key=lambda name: float(np.nan_to_num(rows[name].ratio)))
        best = f"the {BEST[config.objective]} within the budget, which {reference} is not"
        note = f"{_note(winner, race, 1, config.objective)}; {best}"
        reason = rows[winner].reason(reference, note)
    facts = SelectFacts(
        winner=winner,
        target=race.result(winner).target,
        session=race.session(winner),
        reason=reason,
        note=note,
        objective=config.objective,
        batch=batch,
        required_speedup=required,
        decisions=tuple(_with_budget(d, winner, reference, over, excludes=bool(within)) for d in decisions),
    )
    proven = max((standing.proven for standing in eligible.values()), default=1.0)
    fix = f"{winner} wins; try other recipes, or another processor"
    check = config.check("select", proven, required, reason, fix)
    return Report(stage="select", facts=facts, checks=(check, *_none_within(limits[winner], within)))


def _standings(config: SelectConfig, race: BenchmarkFacts, batch: int) -> dict[str, Standing]:
    """Return the standing at the deciding batch size, on its target, of every candidate that was measured."""
    rows = {r.candidate: next((row for row in r.rows if row.batch == batch), None) for r in race.results}
    return {name: config.standing(name, row, race) for name, row in rows.items() if row is not None}


def _on_target(race: BenchmarkFacts, fidelities: Mapping[str, Fidelity]) -> dict[str, Fidelity]:
    """Return the fidelities, limited by the noise of each candidate's target."""
    exact = {race.reference: Fidelity(network=race.reference, sqnr_db=math.inf)}  # in another session variant
    own_db = {result.candidate: result.own_noise_db for result in race.results}
    return {
        name: fidelity.replace(sqnr_db=min(fidelity.sqnr_db, own_db.get(name, math.inf)))
        for name, fidelity in (exact | dict(fidelities)).items()
    }


def _with_budget(
    decision: Decision, winner: str, reference: str, over: Mapping[str, str], *, excludes: bool
) -> Decision:
    """Return a decision with what follows from the budget; it `excludes` nobody where nobody is within it."""
    name = decision.candidate
    if text := over.get(name):
        accepted = decision.accepted and (name == reference or not excludes)
        return decision.replace(accepted=accepted, reason=f"{text}; {decision.reason}")
    if name == winner and not decision.accepted:
        return decision.replace(accepted=True, reason=f"within the budget, which {reference} is not; {decision.reason}")
    return decision


def _none_within(checks: tuple[Check, ...], within: Sequence[str]) -> tuple[Check, ...]:
    """Return the winner's budget checks, which fail where no candidate is within the budget."""
    if within:
        return checks
    return tuple(check.replace(detail=f"{check.detail}; no candidate is within the budget") for check in checks)


def _decide(
    candidate: str, standing: Standing | None, race: BenchmarkFacts, required: float, explanations: ExplainFacts | None
) -> Decision:
    """Decide on one candidate by its standing at the deciding batch size."""
    if candidate == race.reference:
        return Decision(candidate=candidate, accepted=True, reason="the reference")
    if standing is None:
        reason = f"could not be measured: {race.result(candidate).error}"
        return Decision(candidate=candidate, accepted=False, reason=reason)
    if standing.beats(required):
        return Decision(candidate=candidate, accepted=True, reason=standing.measured)
    reason = _rejection(standing, required, race.rounds)
    too_slow = decides_by_speed(standing.objective) or standing.is_slower
    cause = explanations.text(candidate, standing.row.batch) if explanations and too_slow else ""
    return Decision(candidate=candidate, accepted=False, reason=reason + (CAUSE_SEPARATOR + cause if cause else ""))


def _rejection(standing: Standing, required: float, rounds: int) -> str:
    row, better = standing.row, BETTER[standing.objective]
    if row.stopped_as is not None:
        stop = f"dropped after round {row.stopped_after_round}, {row.stopped_as} than {row.stopped_for}"
        return f"{stop}: {standing.measured}"
    if standing.is_slower:
        return f"slower: {standing.measured}"
    with np.errstate(divide="ignore"):  # the lower end of an unbounded interval is 0
        center, low, high = np.log(np.maximum([standing.ratio, standing.low, standing.high], 0)).tolist()
    undecided = standing.ratio > required
    missing = rounds_to_resolve((center, low, high), math.log(required), rounds) if undecided else None
    more = f"; about {missing} more rounds would probably decide it" if missing else ""
    proven = row.verdict == "faster" if decides_by_speed(standing.objective) else standing.low > 1
    outcome = f"{better}, but not by more than {required:.3g}x" if proven else f"not proven {better}"
    return f"{outcome}: {standing.measured}{more}"


def _note(winner: str, race: BenchmarkFacts, tied: int, objective: Objective) -> str:
    note, target = "", race.result(winner).target
    if race.session_variants and race.session(winner) is None:
        note = f", on {target}"
    elif len(race.session_variants) > 1:
        note = f", in the session {target}"
    return note + (f"; the most exact of {tied} equally {EQUALLY[objective]} candidates" if tied > 1 else "")


def _most_exact(rows: Mapping[str, Standing], tolerance: float, fidelities: Mapping[str, Fidelity]) -> tuple[str, int]:
    """Return the candidate with the highest SQNR among those tied with the best, and the number of tied ones.

    Only candidates made from the same network as the best are compared. Of equal SQNR, the faster one wins.
    """
    best = max(rows, key=lambda name: (rows[name].ratio, rows[name].row.speedup))
    if best not in fidelities:
        return best, 1
    network, least = fidelities[best].network, (1 - tolerance) * rows[best].ratio
    tied = [n for n, f in fidelities.items() if n in rows and f.network == network and rows[n].ratio >= least]
    return max(tied, key=lambda name: (fidelities[name].sqnr_db, rows[name].row.speedup)), len(tied)
