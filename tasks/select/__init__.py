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


def still_holds(config: SelectConfig, workspace: Workspace, **_: object) -> bool:
    """Return that an earlier decision holds: it was made after the very race that `benchmark` has just checked."""
    return True


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
    """Choose a winner after a race and confirm it.

    Args:
        config: the objective and the margin.
        workspace: of the stage.
        after: the race of all candidates.
        benchmark: settings of the first race; these have other orders and no early stopping.
        models: by candidate name, the reference first.
        golden: real inputs.
        explanations: why candidates are slow, for the reasons.
        fidelities: SQNR by candidate name; among tied candidates, the highest wins.
        normalized: the normalized file by its candidate's name. It runs in the rounds of the confirmation, so that the
            reason can say how much of the speed-up is due to normalization.
        budget: limits that the winner keeps, where a model does.
        limit_s: time that the confirmation keeps to, where the run has one.
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
