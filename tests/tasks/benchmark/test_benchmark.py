"""Real races between models whose order is certain, and races with a broken model."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import faulty_models
import numpy as np
import onnx
import pytest
from matmul_chains import SIZE, chain, stored_for_race
from synthetic_races import synthetic_race

from flows.stage import _log_verdict
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.race.confidence import median_shift_interval
from gauntlet.race.table import CONTROL
from gauntlet.race.target_examiner import ModelOnTarget
from gauntlet.runtime.worker_client import WorkerClient
from tasks.benchmark import BenchmarkConfig, benchmark, equally_fast, still_holds
from tasks.benchmark.facts import BenchmarkFacts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]
Race = Callable[..., Report[BenchmarkFacts]]


@pytest.fixture
def race(workspace: Callable[..., Workspace]) -> Race:
    def run(models: dict[str, onnx.ModelProto | bytes], inputs: int = 3, **config: object) -> Report[BenchmarkFacts]:
        out = workspace()
        samples = {"x": np.random.default_rng(0).standard_normal((inputs, SIZE)).astype(np.float32)}
        settings = {"rounds": 7, "block_ms": 4, "threads": 1, "timeout_s": 60, "batch_sizes": (1, 8), "profile": False}
        settings |= {"early_stopping": False, "restart_processes": False} | config
        return benchmark(BenchmarkConfig.model_validate(settings), out, **stored_for_race(out, models, samples))

    return run


def test_candidate_is_out_when_it_fails_at_one_of_the_batch_sizes(race: Race) -> None:
    """A candidate must run at every batch size."""
    facts = race({"fp32": chain(1), "picky": faulty_models.picky(1, SIZE)}, rounds=6).facts
    found = facts.result("picky")
    assert str(found.error).startswith("batch 8: ")
    assert found.rows == ()
    assert [row.batch for row in facts.result("fp32").rows] == [1, 8]


def test_race_is_refused_when_the_reference_fails_at_one_of_the_batch_sizes(race: Race) -> None:
    with pytest.raises(StageError, match="the reference 'fp32' cannot be measured: batch 8: "):
        race({"fp32": faulty_models.picky(1, SIZE)}, rounds=6)


def test_race_has_the_right_winner_when_costs_are_clearly_different(race: Race) -> None:
    facts = race({"middle": chain(8), "cheap": chain(1), "dear": chain(48)}).facts
    for batch_row in (0, 1):
        rows = {result.candidate: result.rows[batch_row] for result in facts.results}
        expected = {"middle": "reference", "cheap": "faster", "dear": "slower"}
        assert {name: row.verdict for name, row in rows.items()} == expected
        assert rows["cheap"].speedup_low > 1 > rows["dear"].speedup_high
        assert rows["middle"].speedup == 1
        assert rows["cheap"].median_ms < rows["middle"].median_ms < rows["dear"].median_ms


def test_race_records_every_round_when_it_is_over(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.race.machine_load.MachineLoad.is_disturbed", lambda *_: False)  # so without a witness
    report = race({"fp32": chain(4), "other": chain(2)}, batch_sizes=(2, 5), restart_processes=True)
    facts = report.facts
    assert (facts.reference, facts.rounds, facts.threads) == ("fp32", 7, 1)
    for result in facts.results:
        assert {batch: len(values) for batch, values in result.round_medians_ms.items()} == {2: 7, 5: 7}
        assert [row.batch for row in result.rows] == [2, 5]
        assert result.load_ms > 0
        assert result.first_call_ms > 0
        assert result.peak_rss_bytes > 20e6
        base = facts.result("fp32").round_quartiles_ms
        ratios = np.array(base[2]) / np.array(result.round_quartiles_ms[2])
        interval = [result.rows[0].speedup, result.rows[0].speedup_low, result.rows[0].speedup_high]
        assert result.rows[0].processes == 7
        resolution = 1 if result.candidate == "fp32" else 1 + facts.resolution
        of_rounds = np.exp(median_shift_interval(np.log(ratios))) * [1, 1 / resolution, resolution]
        assert interval == pytest.approx(of_rounds)
        assert result.rows[0].calls >= 7 * 3
    assert CONTROL not in [result.candidate for result in facts.results]
    assert facts.aa_deviation == max(abs(row.speedup - 1) for row in facts.control)
    assert report.checks[0].value == facts.aa_deviation
    assert report.checks[0].severity == "warning"


def test_race_goes_on_without_a_candidate_that_is_no_model(race: Race) -> None:
    facts = race({"fp32": chain(4), "broken": b"no model at all", "cheap": chain(1)}).facts
    assert "refuses the model" in str(facts.result("broken").error)
    assert facts.result("broken").rows == ()
    assert [row.batch for row in facts.result("cheap").rows] == [1, 8]


def test_race_goes_on_without_those_that_are_proven_slower(race: Race) -> None:
    models = {"fp32": chain(24), "cheap": chain(1), "dear": chain(48), "dearer": chain(64)}
    facts = race(models, rounds=12, block_ms=8, early_stopping=True, batch_sizes=(1,)).facts
    rows = {result.candidate: result.rows[0] for result in facts.results}
    assert rows["cheap"].verdict == "faster"
    assert rows["cheap"].stopped_for is None
    for name in ("dear", "dearer"):
        assert (rows[name].verdict, rows[name].stopped_for) == ("slower", "cheap")
        assert 3 <= rows[name].stopped_after_round < 12
        assert len(facts.result(name).round_medians_ms[1]) == rows[name].stopped_after_round
        assert rows[name].speedup_low < rows[name].speedup < rows[name].speedup_high
        assert rows[name].speedup < 1  # three rounds of a busy machine may not prove it against the reference
    for name in ("fp32", "cheap"):
        assert len(facts.result(name).round_medians_ms[1]) == 12
    assert len(facts.control) == 1


def test_race_reports_percentiles_when_there_are_enough_calls(race: Race) -> None:
    row = race({"fp32": chain(1)}, batch_sizes=(1,), block_ms=20).facts.results[0].rows[0]
    assert row.calls > 299
    assert row.median_ms < row.p90_ms <= row.p99_ms
    few = race({"fp32": chain(48)}, batch_sizes=(64,), rounds=6, block_ms=0.1).facts.results[0].rows[0]
    assert (few.calls, few.p90_ms, few.p99_ms) == (18, None, None)


def test_race_profiles_the_reference_and_the_fastest_when_it_is_over(race: Race) -> None:
    report = race({"fp32": chain(8), "cheap": chain(2), "dear": chain(48)}, profile=True)
    assert [(p.candidate, p.batch, p.error) for p in report.facts.profiles] == [("fp32", 1, None), ("cheap", 1, None)]
    for found, products in zip(report.facts.profiles, (8, 2), strict=True):
        assert found.profile.calls >= 3
        operators = {entry.operator: entry.nodes for entry in found.profile.operators}
        assert operators["MatMul"] == products
        assert sum(entry.share for entry in found.profile.operators) + found.profile.non_kernel_share == pytest.approx(
            1
        )
    assert report.artifacts.keys() == {"trace_reference", "trace_fastest"}


def test_equally_fast_candidates_are_profiled_the_fastest_first() -> None:
    rows = {"fp32": (3.0, 1.0, 1.0), "tied": (1.1, 2.5, 2.8), "best": (1.0, 2.7, 3.1), "slower": (2.0, 1.4, 1.6)}
    row = {n: SimpleNamespace(median_ms=ms, speedup_low=low, speedup_high=high) for n, (ms, low, high) in rows.items()}
    results = [SimpleNamespace(candidate=name, rows=(row[name],)) for name in rows]
    assert equally_fast((*results, SimpleNamespace(candidate="broken", rows=()))) == ["best", "tied"]


def test_race_repeats_samples_when_the_batch_is_larger_than_the_data(race: Race) -> None:
    facts = race({"fp32": chain(1)}, inputs=3, batch_sizes=(16,))
    assert facts.facts.results[0].rows[0].batch == 16


def test_worker_imports_no_training_framework_when_it_serves() -> None:
    import subprocess
    import sys

    code = "import sys, gauntlet.runtime.worker; print([m for m in ('torch', 'sklearn', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


Known = Callable[..., tuple[BenchmarkConfig, Workspace, BenchmarkFacts, dict[str, Any]]]


@pytest.fixture
def known(workspace: Callable[..., Workspace]) -> Known:
    """An earlier race of two models, whose speed-up lies between two limits."""

    def run(low: float, high: float, **settings: Any) -> Any:
        out = workspace()
        given = stored_for_race(out, {"fp32": chain(4), "int8": chain(1)}, {"x": np.zeros((1, SIZE), np.float32)})
        how = {"rounds": 7, "block_ms": 2, "threads": 1, "batch_sizes": (1,), "restart_processes": False}
        quiet = {"profile": False, "max_aa_deviation": 1e9}  # whatever else is at work here
        config = BenchmarkConfig.model_validate(how | quiet | settings)
        facts = benchmark(config, out, **given).facts
        rows = (facts.result("int8").rows[0].replace(speedup=1e9, speedup_low=low, speedup_high=high),)
        results = (facts.results[0], facts.result("int8").replace(rows=rows))
        return config, out, facts.replace(results=results), given

    return run


def test_race_holds_where_the_intervals_of_the_fastest_overlap(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    config, out, facts, given = known(0.0, 1e9)
    load, loaded = WorkerClient.send_load, []
    monkeypatch.setattr(WorkerClient, "send_load", lambda *given, **how: (loaded.append(given), load(*given, **how))[1])
    assert still_holds(config.replace(restart_processes=True), out, known=facts, **given)
    assert len(loaded) <= 5  # once each, also in a second race beside other work: new processes take seconds


def test_race_does_not_hold_where_the_fastest_is_not_as_fast_any_more(known: Known) -> None:
    config, out, facts, given = known(1e8, 1e9)
    assert not still_holds(config, out, known=facts, **given)


@pytest.mark.parametrize(
    "changed",
    [{"facts": {"aa_deviation": 2e9}}, {"facts": {"threads": 3}}, {"config": {"rounds": 6}}],
    ids=["it was disturbed", "other threads", "as quick itself"],
)
def test_race_is_repeated_without_a_quick_one(known: Known, changed: dict[str, dict[str, Any]]) -> None:
    config, out, facts, given = known(0.0, 1e9)
    config, facts = config.replace(**changed.get("config", {})), facts.replace(**changed.get("facts", {}))
    assert not still_holds(config, out, known=facts, **(given | {"models": {}}))  # a race would need them


def test_race_holds_while_a_candidate_that_failed_fails_again(workspace: Callable[..., Workspace]) -> None:
    out, models = workspace(), {"fp32": chain(4), "picky": faulty_models.picky(1, SIZE)}
    given = stored_for_race(out, models, {"x": np.zeros((8, SIZE), np.float32)})
    how = {"rounds": 7, "block_ms": 2, "threads": 1, "batch_sizes": (1, 8), "restart_processes": False}
    config = BenchmarkConfig.model_validate(how | {"profile": False, "max_aa_deviation": 1e9})
    facts = benchmark(config, out, **given).facts
    quiet = facts.replace(machine=facts.machine.replace(steal_share=0.0, other_load_cores=0.0, exposed=()))
    wide = quiet.results[0].rows[0].replace(speedup_low=0.0, speedup_high=1e9)
    known = quiet.replace(results=(quiet.results[0].replace(rows=(wide, *quiet.results[0].rows[1:])), quiet.results[1]))
    assert known.result("picky").rows == ()
    assert still_holds(config, out, known=known, **given)
    repaired = given["models"] | {"picky": given["models"]["fp32"]}
    assert not still_holds(config, out, known=known, **(given | {"models": repaired}))


@pytest.mark.parametrize("what", ["disturbed", "batch", "target", "absent"])
def test_race_is_repeated_where_more_may_be_measured_now(known: Known, what: str) -> None:
    config, out, facts, given = known(0.0, 1e9)
    failed = ModelOnTarget(candidate="int8", target="ort-cpu", status="failed", reason="no reply to 'load'")
    changes = {
        "disturbed": {"machine": facts.machine.replace(steal_share=0.5)},
        "batch": {"results": (facts.results[0].replace(rows=facts.results[0].rows * 2), facts.results[1])},
        "target": {"other_targets": (failed,)},
        "absent": {"other_targets": (failed.replace(status="unavailable"),)},  # and it is there now
    }
    changed = facts.replace(**changes[what])
    assert not still_holds(config, out, known=changed, **(given | {"models": {}}))  # a race would need them


RACE = synthetic_race({"slow": (0.4, 0.5, 0.6), "static-u8s8": (3.4, 3.5, 3.6), "broken": "out of memory"})
LINES = (
    "static-u8s8  3.50x [3.40, 3.60], batch 1",
    "fp32         1.00x [1.00, 1.00], batch 1",
    "slow         0.50x [0.40, 0.60], batch 1",
)


def test_fastest_comes_first_and_what_was_not_measured_is_left_out() -> None:
    assert RACE.first_results() == LINES


def test_log_has_them_below_the_verdict_of_the_race(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gauntlet"):
        _log_verdict(Report(stage="benchmark", facts=RACE, seconds=12.0))
    assert caplog.messages == ["benchmark passed, 0 checks (12.0 s)", *(f"  {line}" for line in LINES)]
