"""Promotion as a Prefect flow, so that it can be started from the page and by other flows."""

import logging
from collections.abc import Iterable
from pathlib import Path

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from pydantic import Field

from flows.failure import fails_with_its_reason
from flows.record.benchmark_slot import benchmark_slot
from flows.record.home import Home
from flows.record.prefect_artifacts import show_on_page
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Check
from gauntlet.reporting.markdown_report import escape
from wings.lifecycle.library.promotion.ledger import Role
from wings.lifecycle.library.promotion.replay_facts import ReplayLimits
from wings.lifecycle.registry import promote as registry
from wings.lifecycle.registry.approval import decide

log = logging.getLogger("gauntlet")

WAIT_S = 30 * 24 * 3600
"""How long a flow run waits for a person."""


class Approval(RunInput):
    """What a person enters on the page of the suspended flow run."""

    approve: bool = Field(description="promote it; otherwise it is refused")
    who: str = Field(min_length=1, description="who decides, for the ledger")
    why: str = Field(min_length=1, description="the reason, for the ledger")


@flow(name="promote", flow_run_name="{source} as {role}", persist_result=False, log_prints=False)
@fails_with_its_reason
def promote(
    source: str,
    role: Role = "champion",
    name: str | None = None,
    why: str = "",
    requests: str | None = None,
    limits: ReplayLimits = ReplayLimits(),  # noqa: B008 - immutable; Prefect's form shows its fields
    must_win_on: str | None = None,
    cause: str = "",
    retraining: str = "",
    approve: bool = False,
) -> str:
    """Promote a bundle, as `gauntlet promote` does; return the version. A refusal raises `GateFailed`.

    Args:
        source: id of a run, path of a bundle, or `models:/NAME@challenger`.
        role: the alias.
        name: of the registered model; by default, the run's.
        why: the reason, for the ledger.
        requests: an `.npz` file or a folder of images to replay; by default, the run's test samples.
        limits: what the challenger may lose against the champion.
        must_win_on: an `.npz` file or a folder of labeled images on which the challenger must be proven better.
        cause: what asks for it, where no person does; for the ledger.
        retraining: id of the retraining that asks for it; for the ledger.
        approve: suspend the flow run until a person approves or refuses.
    """
    log.setLevel(logging.INFO)
    replayed, won = (Path(text) if text else None for text in (requests, must_win_on))
    request = registry.PromotionRequest(source, role, name, why, replayed, limits, won, cause, retraining, approve)
    try:
        done = registry.promote(Home.find(), request, alone=benchmark_slot)
        if done.waits:
            done = _answered(done)
    except GateFailed as error:
        show_decision("promotion", f"Refused.\n\n```\n{error}\n```")
        raise
    changed = "is now" if done.changed else "was already"
    show_decision("promotion", f"Version {done.version} of {done.name} {changed} the {role}.", done.entry.checks)
    return done.version


def _answered(asked: registry.Promotion) -> registry.Promotion:
    """Suspend the flow run, which begins anew once a person has answered; then carry out the answer."""
    waits = f"{asked.name} {asked.entry.digest} passed every check and waits for approval: *Resume*."
    show_decision("promotion", waits)
    answer = suspend_flow_run(wait_for_input=Approval, timeout=WAIT_S, key="approval")
    done = decide(Home.find(), asked.name, answer.approve, answer.why, answer.who)
    if not answer.approve:
        raise GateFailed(f"{asked.name}: refused by {answer.who}: {answer.why}")
    return done


def show_decision(key: str, text: str, checks: Iterable[Check] = ()) -> None:
    """Show what was decided, in Markdown, and the checks that have a value."""
    known = [(c, c.value) for c in checks if c.value is not None]
    rows = [f"| {c.name} | {value:.4g} | {c.op} {c.limit:.4g} | {escape(c.detail)} |" for c, value in known]
    table = ["| check | value | limit | |", "|---|---|---|---|", *rows] if rows else []
    markdown = "\n".join([text, "", *table])
    show_on_page(lambda: create_markdown_artifact(key=key, markdown=markdown, description="What was decided, and why"))
