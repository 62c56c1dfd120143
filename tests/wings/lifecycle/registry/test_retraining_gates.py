"""Each gate of a retraining, passed and failed, with a real registry, ledger and replay; the run is made by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from bundles import make_keys
from graded_bundles import make_bundle

from configs.schema import PipelineConfig
from flows.record.home import OWN_RUNS, Home
from flows.record.journal import Journal
from flows.record.locks import is_locked, locked
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.trust import TRUSTED_KEYS
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError, GateFailed, StageError
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from wings.lifecycle.library.promotion import shadow_replay
from wings.lifecycle.library.promotion.ledger import Entry, Ledger
from wings.lifecycle.library.promotion.retrain_facts import RetrainLimits, RetrainResult
from wings.lifecycle.library.promotion.shadow_replay import ReplayedModel
from wings.lifecycle.prefect_flows import retraining
from wings.lifecycle.prefect_flows.promotion import promote as promotion_flow
from wings.lifecycle.prefect_flows.retrain_record import RetrainRecords
from wings.lifecycle.registry.bundle_cache import resolve
from wings.lifecycle.registry.champion_config import champion_config
from wings.lifecycle.registry.model_registry import ModelRegistry, RegistryError
from wings.lifecycle.registry.promote import PromotionRequest, promote

from .conftest import QUICK
from .labeled_requests import log_labeled

pytestmark = pytest.mark.slow
CONFIG = PipelineConfig(name="digits").model_dump(mode="json")
FEW = 300
Retrain = Callable[..., str]


@pytest.fixture(autouse=True)
def without_servers_and_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows are called without Prefect, models run in this process, and no latency is measured: others test these."""

    def outputs(model: ReplayedModel, *_: object) -> NamedArrays:
        with np.load(model.inputs) as inputs:
            return batched_inference(open_session(model.bundle.model, threads=1), dict(inputs)).run(64)

    monkeypatch.setattr(retraining, "promote", promotion_flow.fn)
    monkeypatch.setattr(ReplayedModel, "outputs", outputs)
    monkeypatch.setattr(shadow_replay, "_race", lambda *_: dict.fromkeys(("champion", "challenger")))
    names = ("batch", "champion_ms", "challenger_ms", "slowdown", "slowdown_low", "slowdown_high", "rounds")
    alike = dict.fromkeys((*names, "timed_requests"), 1) | {"latency": "proven good", "more_rounds": None}
    monkeypatch.setattr(shadow_replay, "latency_facts", lambda *_: alike)


@pytest.fixture
def retrain(run, log: Path, monkeypatch: pytest.MonkeyPatch) -> Retrain:
    """Retrain `digits`; the pipeline's place is taken by a run with a model of a known quality."""
    numbers = iter(range(2, 9))

    def start(errors: float = 0.0, *, broken: type[Exception] | None = None, **changes: object) -> str:
        def pipeline(config: PipelineConfig, *, fresh: bool) -> str:
            assert [path.name for path in config.extra_samples] == ["train.npz"]
            if broken is not None:
                raise broken("the disk is full")
            run_id = f"run-{next(numbers)}"
            run(run_id, errors=errors, config=CONFIG)
            return run_id

        monkeypatch.setattr(retraining, "pipeline", pipeline)
        return retraining.retrain.fn("digits", str(log), **{"replay": QUICK, **changes})

    return start


def crown(home: Home, run, errors: float, **changes: object) -> Bundle:
    """Make a champion that errs on a share of the requests."""
    bundle: Bundle = run("run-1", errors=errors, config=CONFIG | changes)
    promote(home, PromotionRequest("run-1"))
    return bundle


def ops(home: Home) -> list[str]:
    return [entry.op for entry in Ledger.of(home.root, "digits").entries()]


def result(home: Home) -> RetrainResult:
    [record] = RetrainRecords(home, "digits").all()
    assert record.result is not None
    return record.result


def test_challenger_that_wins_is_promoted_once(home: Home, run, log: Path, retrain: Retrain) -> None:
    log_labeled(log, crown(home, run, 0.3), FEW)
    alarm = f"{resolve(home, 'models:/digits@champion').digest[:12]}-57-20261122"
    told = retrain(alarm=alarm)
    assert told.startswith("digits: run run-2 is the champion now: proven better: accuracy 1.0000 against 0.")
    assert ops(home) == ["promote", "commit", "promote", "commit"]
    entry = Ledger.of(home.root, "digits").entries()[2]
    assert f"for the alarm {alarm}" in entry.cause
    found = result(home)
    assert (found.outcome, found.trained + found.held_back, found.run_id) == ("promoted", FEW, "run-2")
    assert "retrained for the alarm" in retrain(alarm=alarm)
    [record] = RetrainRecords(home, "digits").all()
    (record.folder / "retrain.json").unlink()  # as if it had been killed after the promotion
    assert "is the champion now" in retrain(alarm=alarm)
    assert len(ops(home)) == 4
    tags = [event["tags"] for event in Journal(home.runs / "run-2" / "journal.jsonl") if event["op"] == "tags"]
    assert [tag["retrain.outcome"] for tag in tags] == ["promoted"]
    with np.load(record.train) as train, np.load(record.test) as test:
        assert len(train["labels"]) == found.trained
        assert not {row.tobytes() for row in train["x"]} & {row.tobytes() for row in test["x"]}


def test_challenger_that_is_no_better_is_not_promoted(home: Home, run, log: Path, retrain: Retrain) -> None:
    log_labeled(log, crown(home, run, 0.02), FEW)
    with pytest.raises(GateFailed, match=r"digits: the champion is kept: promote.min_gain: .* not resolved"):
        retrain(0.02)
    assert ops(home) == ["promote", "commit", "refuse"]
    assert result(home).outcome == "kept"
    assert "Champion kept" in (home.root / "retrains" / "digits" / result(home).id / "retrain.html").read_text()


def test_challenger_that_loses_on_the_old_samples_is_not_promoted(home: Home, run, log: Path, retrain) -> None:
    log_labeled(log, crown(home, run, 0.02), FEW, drifted=0.5)
    with pytest.raises(GateFailed, match=r"the champion is kept: promote.max_accuracy_drop: .* proven bad"):
        retrain(0.5)
    found = result(home)
    assert found.replay.gain.after > 0.9 > 0.7 > found.replay.gain.before
    assert ops(home) == ["promote", "commit", "refuse"]


def test_run_whose_own_gate_fails_is_refused_and_repeated_only_if_asked(home: Home, run, log, monkeypatch) -> None:
    log_labeled(log, crown(home, run, 0.3), FEW)
    numbers = iter(range(2, 9))

    def pipeline(_: PipelineConfig, *, fresh: bool) -> str:
        failed = {"verdict": "failed", "stopped_at": "evaluate", "reason": "evaluate.min_recall", "winner": None}
        run(f"run-{next(numbers)}", config=CONFIG, **failed)
        OWN_RUNS.add(home.run_folders()[-1].name)
        raise GateFailed("evaluate.min_recall")

    monkeypatch.setattr(retraining, "pipeline", pipeline)
    with pytest.raises(GateFailed, match=r"the champion is kept: promote.run_passed: .* failed at evaluate"):
        retraining.retrain.fn("digits", str(log), replay=QUICK)
    assert ops(home) == ["promote", "commit", "refuse"]
    assert "with the same requests already, kept" in retraining.retrain.fn("digits", str(log), replay=QUICK)
    assert len(ops(home)) == 3
    with pytest.raises(GateFailed, match="run-3 failed at evaluate"):
        retraining.retrain.fn("digits", str(log), replay=QUICK, fresh=True)
    assert ops(home)[3:] == ["refuse"]


def test_broken_run_closes_the_record_and_may_be_repeated(home: Home, run, log: Path, retrain: Retrain) -> None:
    log_labeled(log, crown(home, run, 0.3), FEW)
    with pytest.raises(StageError, match="the disk is full"):
        retrain(broken=StageError)
    assert (result(home).outcome, result(home).reason) == ("broke", "StageError: the disk is full")
    with pytest.raises(KeyboardInterrupt):
        retrain(broken=KeyboardInterrupt)  # type: ignore[arg-type]
    [record] = RetrainRecords(home, "digits").all()
    assert record.result is None
    assert "is the champion now" in retrain()
    assert ops(home) == ["promote", "commit", "promote", "commit"]


@pytest.mark.parametrize("away", [RegistryError, httpx.ConnectError])
def test_server_that_is_away_leaves_the_retraining_to_the_next_start(
    home: Home, run, log: Path, retrain: Retrain, away: type[Exception]
) -> None:
    champion = crown(home, run, 0.3)
    log_labeled(log, champion, FEW)
    alarm = f"{champion.digest[:12]}-57-20261122"
    with pytest.raises(away):
        retrain(alarm=alarm, broken=away)
    [record] = RetrainRecords(home, "digits").all()
    assert record.result is None
    assert "is the champion now" in retrain(alarm=alarm)
    assert ops(home) == ["promote", "commit", "promote", "commit"]


def test_too_few_labels_are_refused_with_both_numbers(home: Home, run, log: Path, retrain: Retrain) -> None:
    champion = crown(home, run, 0.3)
    log_labeled(log, make_bundle(home.root / "other", 0.1), FEW)
    with pytest.raises(ConfigError, match="0 labeled samples of requests to the champion, 0 of them held back; 200"):
        retrain()
    log_labeled(log, champion, 30, seed=6)
    with pytest.raises(ConfigError, match=r"30 labeled samples .* 31 are needed .*Fix: send labels to POST"):
        retrain(limits=RetrainLimits(min_labeled=31))
    assert not RetrainRecords(home, "digits").all()


def test_alarm_about_another_version_and_a_second_process_end_at_once(home: Home, run, log: Path, retrain) -> None:
    log_labeled(log, crown(home, run, 0.3), FEW)
    assert "is about another version than today's champion" in retrain(alarm="0123456789ab-5-2026")
    with locked(home.locks / "retrain-digits"):
        assert "another process is retraining it already" in retrain()
    assert ops(home) == ["promote", "commit"]


def test_retraining_that_is_killed_within_the_promotion_finishes_it(home: Home, run, log, retrain, monkeypatch) -> None:
    log_labeled(log, crown(home, run, 0.3), FEW)
    point = ModelRegistry.point

    def killed(*_: object) -> None:
        monkeypatch.setattr(ModelRegistry, "point", point)
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelRegistry, "point", killed)
    with pytest.raises(KeyboardInterrupt):
        retrain()
    assert ops(home) == ["promote", "commit", "promote"]
    assert "run run-2 is the champion now" in retrain(broken=AssertionError)  # no second run
    assert ops(home) == ["promote", "commit", "promote", "commit"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"has no configuration in its report.json"),
        (CONFIG | {"train": {"kind": "onnx", "model": "m.onnx"}, "export": {"kind": "as-is"}}, "nothing to train"),
        (CONFIG | {"train": {"kind": "torch", "epoch": 3}}, r"train.epoch: unknown key; did you mean 'epochs'"),
    ],
)
def test_champion_that_cannot_be_trained_or_is_not_trusted_is_refused(
    home: Home, run, config: dict[str, object], message: str, tmp_path: Path, monkeypatch
) -> None:
    run("run-1", config=config)
    promote(home, PromotionRequest("run-1"))
    with pytest.raises(ConfigError, match=message):
        champion_config(resolve(home, "models:/digits@champion"))
    monkeypatch.setenv(TRUSTED_KEYS, str(make_keys(tmp_path)[1]))
    with pytest.raises(ConfigError, match="no signature by a key of GAUNTLET_TRUSTED_KEYS"):
        champion_config(resolve(home, "models:/digits@champion"))


def test_clean_up_waits_until_a_retraining_is_judged(
    home: Home, run, log: Path, retrain: Retrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_labeled(log, crown(home, run, 0.3), FEW)
    judge, in_use = retraining._promote, list[bool]()

    def judged(*arguments: Any) -> Entry:
        in_use.append(is_locked(home.in_use))
        return judge(*arguments)

    monkeypatch.setattr(retraining, "_promote", judged)
    retrain()
    assert (in_use, is_locked(home.in_use)) == ([True], False)
