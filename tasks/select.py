"""Select the winner: a candidate that is proven faster than the FP32 model, or else the FP32 model."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from gauntlet.benchmarking.budget import NO_BUDGET, Budget, over_budget
from gauntlet.benchmarking.confidence import rounds_to_resolve
from gauntlet.benchmarking.session_options import SessionVariant
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import CAUSE_SEPARATOR, BenchmarkRow
from gauntlet.core.workspace import Workspace
from tasks.benchmark.facts import BenchmarkFacts
from tasks.explain import ExplainFacts


class SelectConfig(Frozen):
    """When a candidate is selected over the reference."""

    batch: int = Field(1, ge=1, description="the deciding batch size; one of benchmark.batch_sizes")
    min_speedup: float = Field(1.05, ge=1, description="the lower end of the speed-up's interval must exceed this")
    tie_tolerance: float = Field(0.02, ge=0, lt=1, description="within this share of the fastest, the best SQNR wins")
    require_speedup: bool = Field(False, description="whether the run fails when no candidate is fast enough")

    @property
    def severity(self) -> Literal["error", "warning"]:
        """How severe it is that no candidate is fast enough."""
        return "error" if self.require_speedup else "warning"

    def required_speedup(self, aa_deviation: float) -> float:
        """Return `min_speedup`, or the A/A deviation where that is larger; NaN stays NaN."""
        return float(np.maximum(self.min_speedup, 1 + aa_deviation))


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
    required_speedup: Number = Field(description="select.min_speedup, or the A/A deviation where that is larger")
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
    """Select the fastest candidate that is proven faster than the reference by the margin; else the reference.

    Among tied candidates, the highest SQNR wins; `fidelities` has it by candidate name. With a budget, only a model
    within it wins: where the reference is over it, the fastest one within it, proven faster or not. Where none is
    within it, the gate fails.
    """
    required, reference = config.required_speedup(race.aa_deviation), race.reference
    rows = _deciding_rows(config, race)
    limits = {n: budget.checks(n, race.chosen_rows(n), race.result(n).size_bytes) for n in rows}
    over = {name: text for name, checks in limits.items() if (text := over_budget(checks))}
    within = [name for name in rows if name not in over]
    decisions = tuple(_decide(r.candidate, rows.get(r.candidate), race, required, explanations) for r in race.results)
    # The reference is always accepted, but wins only as the last resort or in a faster session variant.
    accepted = [d.candidate for d in decisions if d.accepted and d.candidate in (within or rows)]
    eligible = {name: rows[name] for name in accepted if _is_faster(rows[name], required)}
    if eligible:
        tolerance = max(config.tie_tolerance, race.aa_deviation)
        winner, tied = _most_exact(eligible, tolerance, _on_target(race, fidelities or {}))
        note = _note(winner, race, tied)
        reason = winning_reason(rows[winner], reference, note)
    elif reference in within or not within:
        winner, note = reference, ""
        reason = f"no candidate is proven faster than {reference} by more than {required:.3g}x"
    else:
        winner = max(within, key=lambda name: rows[name].speedup)
        note = f"{_note(winner, race, 1)}; the fastest within the budget, which {reference} is not"
        reason = winning_reason(rows[winner], reference, note)
    facts = SelectFacts(
        winner=winner,
        target=race.result(winner).target,
        session=race.session(winner),
        reason=reason,
        note=note,
        required_speedup=required,
        decisions=tuple(_with_budget(d, winner, reference, over, excludes=bool(within)) for d in decisions),
    )
    proven = max((row.speedup_low for row in eligible.values()), default=1.0)
    fix, severity = f"{winner} wins; try other recipes, or another processor", config.severity
    check = Check.of("select.min_speedup", proven, ">", required, reason, fix, unit="x", severity=severity)
    return Report(stage="select", facts=facts, checks=(check, *_none_within(limits[winner], within)))


def _deciding_rows(config: SelectConfig, race: BenchmarkFacts) -> dict[str, BenchmarkRow]:
    """Return the row at the deciding batch size, on its target, of every candidate that was measured."""
    sizes = {row.batch for row in race.result(race.reference).rows}
    batch = sizes.pop() if len(sizes) == 1 else config.batch  # a fixed batch size is the only one that was measured
    rows = {r.candidate: next((row for row in r.rows if row.batch == batch), None) for r in race.results}
    return {name: row for name, row in rows.items() if row is not None}


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


def _is_faster(row: BenchmarkRow, required: float) -> bool:
    return row.verdict != "reference" and row.stopped_as is None and row.speedup_low > required


def _decide(
    candidate: str, row: BenchmarkRow | None, race: BenchmarkFacts, required: float, explanations: ExplainFacts | None
) -> Decision:
    """Decide on one candidate by its row at the deciding batch size."""
    if candidate == race.reference:
        return Decision(candidate=candidate, accepted=True, reason="the reference")
    if row is None:
        reason = f"could not be measured: {race.result(candidate).error}"
        return Decision(candidate=candidate, accepted=False, reason=reason)
    measured = f"{speedup_text(row)} at batch {row.batch}"
    if _is_faster(row, required):
        return Decision(candidate=candidate, accepted=True, reason=measured)
    reason = _rejection(row, measured, required, race.rounds)
    cause = explanations.text(candidate, row.batch) if explanations else ""
    return Decision(candidate=candidate, accepted=False, reason=reason + (CAUSE_SEPARATOR + cause if cause else ""))


def _rejection(row: BenchmarkRow, measured: str, required: float, rounds: int) -> str:
    if row.stopped_as is not None:
        return f"dropped after round {row.stopped_after_round}, {row.stopped_as} than {row.stopped_for}: {measured}"
    outcomes = {"slower": "slower", "faster": f"faster, but not by more than {required:.3g}x"}
    with np.errstate(divide="ignore"):  # the lower end of an unbounded interval is 0
        center, low, high = np.log(np.maximum([row.speedup, row.speedup_low, row.speedup_high], 0)).tolist()
    undecided = row.speedup > required
    missing = rounds_to_resolve((center, low, high), math.log(required), rounds) if undecided else None
    more = f"; about {missing} more rounds would probably decide it" if missing else ""
    return f"{outcomes.get(row.verdict, 'not proven faster')}: {measured}{more}"


def winning_reason(row: BenchmarkRow, reference: str, note: str) -> str:
    """Return why a winner was selected, in one line."""
    return f"{speedup_text(row)} the speed of {reference} at batch {row.batch}{note}"


def _note(winner: str, race: BenchmarkFacts, tied: int) -> str:
    note, target = "", race.result(winner).target
    if race.session_variants and race.session(winner) is None:
        note = f", on {target}"
    elif len(race.session_variants) > 1:
        note = f", in the session {target}"
    return note + (f"; the most exact of {tied} equally fast candidates" if tied > 1 else "")


def _most_exact(
    rows: Mapping[str, BenchmarkRow], tolerance: float, fidelities: Mapping[str, Fidelity]
) -> tuple[str, int]:
    """Return the candidate with the highest SQNR among those tied with the fastest, and the number of tied ones.

    Only candidates made from the same network as the fastest are compared. Of equal SQNR, the faster one wins.
    """
    fastest = max(rows, key=lambda name: rows[name].speedup)
    if fastest not in fidelities:
        return fastest, 1
    network, least = fidelities[fastest].network, (1 - tolerance) * rows[fastest].speedup
    tied = [n for n, f in fidelities.items() if n in rows and f.network == network and rows[n].speedup >= least]
    return max(tied, key=lambda name: (fidelities[name].sqnr_db, rows[name].speedup)), len(tied)


def speedup_text(row: BenchmarkRow) -> str:
    """Return a row's speed-up with its interval."""
    return f"{row.speedup:.2f}x [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"
