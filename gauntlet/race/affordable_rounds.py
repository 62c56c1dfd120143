"""The rounds and batch sizes of a race that its time suffices for."""

import math
from collections.abc import Sequence
from dataclasses import replace

from gauntlet.race.contender import TURNS, Contender, Plan
from gauntlet.race.halfway_look import LEAST_ROUNDS


def affordable(everyone: Sequence[Contender], plan: Plan, spent_s: float) -> Plan:
    """Return the plan with the batch sizes and rounds for which the time suffices, by the calls of the warm-up."""
    if plan.limit_s is None:
        return plan
    left_s, sizes = plan.limit_s - spent_s, plan.batch_sizes
    while len(sizes) > 1 and plan.least_rounds * _round_s(everyone, sizes, plan) > left_s:
        sizes = sizes[:-1]
    for contender in everyone:
        for size in plan.batch_sizes[len(sizes) :]:
            contender.round_medians_ms.pop(size, None)  # it has no row
    rounds = int(left_s / _round_s(everyone, sizes, plan))
    return replace(plan, batch_sizes=sizes, rounds=min(plan.rounds, max(plan.least_rounds, rounds)))


def shorter_at_further_sizes(everyone: Sequence[Contender], plan: Plan) -> Plan:
    """Return the plan with half of the rounds at further batch sizes, where these have long calls."""
    long = any(c.runs(size) and not c.untimed_calls[size] for c in everyone for size in plan.batch_sizes[1:])
    half = max(plan.least_rounds, LEAST_ROUNDS, math.ceil(plan.rounds / 2))
    return replace(plan, further_rounds=half) if plan.early_stopping and long else plan


def _round_s(everyone: Sequence[Contender], sizes: Sequence[int], plan: Plan) -> float:
    """Return about how long a round takes, with the start of new processes, which load side by side."""
    running = [(c, size) for c in everyone for size in sizes if c.runs(size)]
    calls_ms = sum(TURNS * c.turn_ms(size) for c, size in running)
    warm_ms = sum(max(plan.block_ms / 2, c.warm_ms[size]) for c, size in running)
    starts_s = max((c.starting_s for c, _ in running if not c.keeps_process), default=0.0)
    return calls_ms / 1e3 + plan.restarts * (warm_ms / 1e3 + starts_s) + 1e-9
