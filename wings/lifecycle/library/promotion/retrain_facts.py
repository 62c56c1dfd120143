"""A retraining: what it needs, what it has begun with, and what came of it."""

from typing import Literal

from pydantic import Field

from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.core.report import Check
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts, ReplayLimits

Outcome = Literal["promoted", "kept", "broke"]


class RetrainLimits(Frozen):
    """What a retraining needs, and how its data is divided."""

    min_labeled: int = Field(200, ge=20, description="labeled samples that are needed, those held back included")
    held_back: float = Field(
        0.3, gt=0, lt=1, description="share of the labeled requests, the latest, that judges and is not trained on"
    )


class RetrainTask(Frozen):
    """What a retraining has begun with: all that it needs to continue after it was killed."""

    id: str = Field(description="the same for the same champion and labeled requests")
    name: str = Field(description="of the registered model")
    champion: str = Field(description="digest of the bundle that was the champion")
    alarm: str = Field("", description="the alarm that started it; empty where a person or a schedule did")
    why: str = Field("", description="the reason that a person gave")
    started_at: str = Field(description="ISO 8601, UTC")
    trained: int = Field(description="labeled samples that are added to the champion's training data")
    held_back: int = Field(description="labeled samples on which the challenger must be better")
    limits: ReplayLimits = Field(description="what the challenger may lose against the champion")
    config: JsonObject = Field(description="of the challenger's run: the champion's, with the added samples")
    run_id: str | None = Field(None, description="the challenger's run, once it has ended")

    @property
    def cause(self) -> str:
        """What the ledger says of why there is a promotion, or none."""
        by = f", for the alarm {self.alarm}" if self.alarm else ""
        return f"retraining {self.id} with {self.trained} labeled samples, judged on {self.held_back} others{by}"


class RetrainResult(RetrainTask):
    """What came of it."""

    schema_version: Literal[1] = 1
    outcome: Outcome = Field(description="`kept`: the champion stays, because a gate failed; `broke`: no verdict")
    reason: str
    seconds: Number
    challenger: str | None = Field(None, description="digest of its bundle; None where its run made none")
    checks: tuple[Check, ...] = Field((), description="of the promotion")
    replay: ReplayFacts | None = Field(None, description="challenger against champion; None where it came to none")


def require_enough(
    name: str, labeled: int, usable: int, samples: tuple[int, int], limits: RetrainLimits, copies: int = 0
) -> None:
    """Raise `ConfigError` when there are too few labeled samples.

    Args:
        name: of the registered model.
        labeled: requests to the champion that have labels.
        usable: those of them that also have inputs, and a label for each sample.
        samples: those to train on, and those held back.
        limits: how many are needed.
        copies: samples that are left out, as near copies of one that is held back.
    """
    trained, held_back = samples
    if trained + held_back >= limits.min_labeled and trained and held_back:
        return
    needed = f"{limits.min_labeled} are needed (--min-labeled), with some to train on and some to hold back"
    available = f"{trained + held_back} labeled samples of requests to the champion, {held_back} of them held back"
    fix = "send labels to POST /v2/models/NAME/feedback"
    if copies:
        available += f"; {copies} more are left out, as near copies of one that is held back"
    if usable < labeled:
        available += f"; {labeled - usable} labeled requests have no inputs, or another number of labels than samples"
        fix = f"start the server with --log-inputs all, and {fix}"
    raise ConfigError(f"{name}: too few to retrain: {available}; {needed}. Fix: {fix}")
