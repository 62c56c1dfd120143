"""Homes with a real MLflow store, and runs with bundles in them."""

import contextlib
from collections.abc import Callable

import pytest
from graded_bundles import make_bundle, run_report, samples
from mlflow import MlflowClient

from flows.record.home import Home
from flows.record.journal import Journal
from flows.tracking.sender import PARENT
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.report import Check
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts, ReplayLimits
from wings.lifecycle.registry import promote as promotion
from wings.lifecycle.registry.promote import Promotion, PromotionRequest, promote

from .killing_proxy import proxy

__all__ = ["proxy"]  # a fixture

MakeRun = Callable[..., Bundle]


@pytest.fixture
def home(stored: Home) -> Home:
    return stored


def make_run(
    home: Home,
    run_id: str,
    *checks: Check,
    errors: float = 0.0,
    products: int = 1,
    uri: str = "",
    monitored: bool = False,
    **changes: object,
) -> Bundle:
    """Leave a finished run in the home, with a bundle and labeled test samples; return the bundle."""
    folder = home.runs / run_id
    folder.mkdir(parents=True)
    report = run_report(run_id, *checks, **changes)
    place = home.root / "made" / run_id
    bundle = make_bundle(place, errors, products, run_id=run_id, report=report, monitored=monitored)
    packed = home.root / "made" / "bundle.zip"
    (home.root / "made" / f"{run_id}.zip").rename(packed)
    x, labels = samples(1000)
    import numpy as np

    np.savez(home.root / "made" / "test.npz", x=x, labels=labels)
    test = home.store.put(home.root / "made" / "test.npz")
    report = run_report(run_id, *checks, artifact=home.store.put(packed), **changes)
    data = report.stages[0].replace(stage="data", checks=(), artifacts={"test": test})
    with contextlib.suppress(KeyError):
        assert changes["verdict"] == "failed"  # such a run packages nothing
        report = report.replace(stages=report.stages[:-1])
    report = report.replace(stages=(data, *report.stages))
    (folder / "report.json").write_text(report.model_dump_json())
    journal = Journal(folder / "journal.jsonl")
    start = {"uri": uri or home.mlflow_uri, "experiment": "digits", "tags": {"stage": "pipeline"}, "pid": 0}
    journal.append("start", run=PARENT, name=run_id, **start)
    journal.append("end", run=PARENT, status="FINISHED")
    return bundle


@pytest.fixture
def run(home: Home) -> MakeRun:
    """Make a run in this test's home."""

    def make(run_id: str, *checks: Check, **options: object) -> Bundle:
        return make_run(home, run_id, *checks, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def no_replay(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replays are not run but noted, and find that the challenger is as good; each takes seconds otherwise."""
    seen = list[str]()

    def same(champion: Bundle, challenger: Bundle, *_: object) -> ReplayFacts:
        seen.append(f"{champion.contract.run_id} {challenger.contract.run_id}")
        perfect = {"metric": "accuracy", "n": 1000, "before": 1, "after": 1, "drop": 0, "low": 0, "high": 0}
        perfect |= {"lost": 0, "gained": 0}
        facts = {"champion": champion.digest, "source": "test", "requests": 1000, "labeled": True, "change": perfect}
        facts |= {"quality": "proven good", "requests_to_resolve": None, "latency": "proven good", "more_rounds": None}
        numbers = ("batch", "champion_ms", "challenger_ms", "slowdown", "slowdown_low", "slowdown_high", "rounds")
        return ReplayFacts.model_validate(facts | dict.fromkeys(numbers, 1) | {"slowdown_high": 0, "timed_requests": 1})

    monkeypatch.setattr(promotion, "shadow_replay", same)
    return seen


QUICK = ReplayLimits(rounds=6, block_ms=5, max_slowdown=20)


OVERRIDDEN = Check.of("accuracy.max_accuracy_drop", 0.03, "<=", 0.01).replace(override="ticket 7")


def ask(home: Home, source: str, **changes: object) -> Promotion:
    return promote(home, PromotionRequest(**{"source": source, "limits": QUICK, **changes}))  # type: ignore[arg-type]


def aliases(home: Home, name: str = "digits") -> dict[str, str]:
    model = MlflowClient(home.mlflow_uri).get_registered_model(name)
    return {alias: str(version) for alias, version in model.aliases.items()}
