"""Select the winner: proven better than the FP32 model at the objective in a race, and again in one of its own."""

from collections.abc import Mapping

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.stage import stage
from gauntlet.core.workspace import Workspace
from gauntlet.race.budget import NO_BUDGET, Budget
from tasks.benchmark.config import BenchmarkConfig
from tasks.benchmark.facts import BenchmarkFacts
from tasks.select.choose import Explanations, choose
from tasks.select.config import SelectConfig
from tasks.select.confirm import confirm
from tasks.select.decision import Decision, Fidelity


def still_holds(*_: object, known: Decision, benchmark: BenchmarkConfig, **__: object) -> bool:
    """Return whether no other work disturbed the races of an earlier selection; `benchmark` has checked the first."""
    races = (confirmation.race for confirmation in known.confirmations)
    return all(race.is_quiet(benchmark.max_aa_deviation) for race in races)


@stage(measured=True, still_holds=still_holds)
def select(
    config: SelectConfig,
    workspace: Workspace,
    *,
    after: BenchmarkFacts,
    benchmark: BenchmarkConfig,
    models: Mapping[str, Artifact],
    golden: Artifact,
    explanations: Explanations | None = None,
    fidelities: Mapping[str, Fidelity] | None = None,
    normalized: Mapping[str, Artifact] | None = None,
    budget: Budget = NO_BUDGET,
    limit_s: float | None = None,
) -> Report[Decision]:
    """Choose a winner after a race (`choose`), and confirm it in one of its own (`confirm`).

    `models` are by candidate name, the reference first. `normalized`, the normalized file by its candidate's name, runs
    in the rounds of the confirmation, so that the reason can say how much of the speed-up is due to normalization.
    """
    decision, checks = choose(config, after, explanations=explanations, fidelities=fidelities, budget=budget)
    if (decision.winner, decision.target) != (after.reference, benchmark.targets[0].name):
        limits = [check for check in checks if check.name.startswith("budget.")]
        decision, checks = confirm(
            config,
            benchmark,
            workspace,
            decision=decision,
            models=models,
            golden=golden,
            normalized=normalized or {},
            budget=budget,
            limit_s=limit_s,
            first_rows={result.candidate: result.rows for result in after.results},
        )
        if any(check.blocks for check in limits):  # no candidate is within the budget
            checks = (*(check for check in checks if not check.name.startswith("budget.")), *limits)
    return Report(facts=decision, checks=checks)
