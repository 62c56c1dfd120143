"""The last gate: a candidate is chosen because it was measured faster, or the FP32 model stays."""

import math
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from tasks.benchmark import BenchmarkFacts
from tasks.benchmark.certainty import rounds_to_resolve
from tasks.benchmark.sessions import Session
from tasks.explain import ExplainFacts
from tasks.frozen import Frozen, Number
from tasks.report import Check, Report
from tasks.run_report import BECAUSE, BenchmarkRow
from tasks.workspace import Workspace


class SelectConfig(Frozen):
    """When a candidate is worth shipping."""

    batch: int = Field(1, ge=1, description="the batch size that decides; one of benchmark.batch_sizes")
    min_speedup: float = Field(1.05, ge=1, description="the lower end of the interval must lie above this")
    same_speed: float = Field(
        0.02,
        ge=0,
        lt=1,
        description="of candidates that are no further than this behind the fastest, the most exact one is chosen",
    )
    require_speedup: bool = Field(False, description="fail the run when no candidate is fast enough")


class Verdict(Frozen):
    """What the race says of one candidate."""

    candidate: str
    accepted: bool
    reason: str


class SelectFacts(Frozen):
    """The choice, and why."""

    winner: str
    target: str = Field("", description="where the winner is to be run: ort-cpu, a session of it, or another target")
    session: Session | None = Field(None, description="how the winner is to be opened, where ONNX Runtime does it")
    reason: str
    required_speedup: Number = Field(description="select.min_speedup, or more where the machine was noisy")
    verdicts: tuple[Verdict, ...]

    def verdict(self, candidate: str) -> Verdict:
        """Return what was decided of one candidate."""
        return next(v for v in self.verdicts if v.candidate == candidate)


class Exactness(Frozen):
    """How near a candidate is to the network that it was made from. Only those made from the same one compare."""

    network: str
    sqnr_db: Number


def select(
    config: SelectConfig,
    out: Workspace,
    *,
    race: BenchmarkFacts,
    why: ExplainFacts | None = None,
    exactness: Mapping[str, Exactness] | None = None,
) -> Report[SelectFacts]:
    """Choose the fastest candidate that is proven faster than the reference by the margin; else the reference.

    Args:
        config: when a candidate is worth shipping.
        out: not used.
        race: what was measured.
        why: what keeps the others from being faster.
        exactness: by candidate; of those as fast as each other, the most exact is chosen.
    """
    required = float(np.maximum(config.min_speedup, 1 + race.aa_deviation))  # NaN, unlike with max(), stays
    sizes = list({row.batch for row in race.result(race.reference).rows})
    batch = sizes[0] if len(sizes) == 1 else config.batch  # a model with a fixed batch was measured at that one alone
    deciding: dict[str, BenchmarkRow] = {}
    verdicts = []
    for result in race.results:
        row = next((r for r in result.rows if r.batch == batch), None)
        if result.candidate == race.reference:
            verdicts.append(Verdict(candidate=result.candidate, accepted=True, reason="the reference"))
            if row is not None and row.verdict != "reference" and row.speedup_low > required:
                deciding[result.candidate] = row  # it is that much faster in another session
        elif row is None:
            reason = f"could not be measured: {result.error}"
            verdicts.append(Verdict(candidate=result.candidate, accepted=False, reason=reason))
        else:
            verdict = _judge(result.candidate, row, required, race.rounds)
            if verdict.accepted:
                deciding[result.candidate] = row
            elif why and (told := why.text(result.candidate, batch)):
                verdict = verdict.replace(reason=f"{verdict.reason}{BECAUSE}{told}")
            verdicts.append(verdict)
    within = max(config.same_speed, race.aa_deviation)
    best, chosen_of = _most_exact(deciding, within, _there(exactness or {}, race)) if deciding else (None, 0)
    if best is None:
        reason = f"no candidate is proven faster than {race.reference} by more than {required:.3g}x"
    else:
        row = deciding[best]
        reason = f"{_speedup(row)} the speed of {race.reference} at batch {row.batch}"
        if race.sessions and race.session(best) is None:
            reason += f", on {row.target}"
        elif len(race.sessions) > 1:
            reason += f", in the session {row.target}"
        reason += f"; the most exact of {chosen_of} that are as fast" if chosen_of > 1 else ""
    lows = [row.speedup_low for row in deciding.values()]
    check = Check(
        name="select.min_speedup",
        value=max(lows, default=1.0),
        op=">",
        limit=required,
        unit="x",
        severity="error" if config.require_speedup else "warning",
        detail=reason,
        remedy="" if best else f"{race.reference} is kept; try other recipes, or another processor",
    )
    facts = SelectFacts(
        winner=best or race.reference,
        target=race.result(best or race.reference).target,
        session=race.session(best or race.reference),
        reason=reason,
        required_speedup=required,
        verdicts=tuple(verdicts),
    )
    return Report(stage="select", facts=facts, checks=(check,))


def _there(exactness: Mapping[str, Exactness], race: BenchmarkFacts) -> dict[str, Exactness]:
    """Return the exactness where each candidate is to be run: no more than that target's own."""
    own_db = {result.candidate: result.own_noise_db for result in race.results}
    return {
        name: known.replace(sqnr_db=min(known.sqnr_db, own_db.get(name, known.sqnr_db)))
        for name, known in exactness.items()
    }


def _most_exact(rows: Mapping[str, BenchmarkRow], within: float, exactness: Mapping[str, Exactness]) -> tuple[str, int]:
    """Return the most exact candidate of those as fast as the fastest, and how many these are.

    Only those count that were made from the same network as the fastest. Of the most exact ones, the fastest is taken.
    """
    fastest = max(rows, key=lambda name: rows[name].speedup)
    if fastest not in exactness:
        return fastest, 1
    network, least = exactness[fastest].network, (1 - within) * rows[fastest].speedup
    same = [n for n, e in exactness.items() if n in rows and e.network == network and rows[n].speedup >= least]
    return max(same, key=lambda name: (exactness[name].sqnr_db, rows[name].speedup)), len(same)


def _judge(candidate: str, row: BenchmarkRow, required: float, rounds: int) -> Verdict:
    measured = f"{_speedup(row)} at batch {row.batch}"
    if row.dropped_as is not None:
        why = f"dropped after round {row.dropped_after_round}, {row.dropped_as} than {row.dropped_for}"
        return Verdict(candidate=candidate, accepted=False, reason=f"{why}: {measured}")
    if row.speedup_low > required:
        return Verdict(candidate=candidate, accepted=True, reason=measured)
    why = {"slower": "slower", "faster": f"faster, but not by more than {required:.3g}x"}.get(
        row.verdict, "not proven faster"
    )
    missing = rounds_to_resolve(_interval(row), math.log(required), rounds) if row.speedup > required else None
    more = f"; about {missing} more rounds would probably settle it" if missing else ""
    return Verdict(candidate=candidate, accepted=False, reason=f"{why}: {measured}{more}")


def _interval(row: BenchmarkRow) -> tuple[float, float, float]:
    """Return the logarithms of the speed-up and its ends."""
    with np.errstate(divide="ignore"):  # of an interval without an end, the lower one is 0
        centre, low, high = np.log(np.maximum([row.speedup, row.speedup_low, row.speedup_high], 0)).tolist()
    return centre, low, high


def _speedup(row: BenchmarkRow) -> str:
    return f"{row.speedup:.2f}x [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"
