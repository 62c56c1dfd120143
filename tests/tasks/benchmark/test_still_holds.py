"""An earlier race stands for a new one while a quick race agrees with it; the first results of a race are logged."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matmul_chains import SIZE, chain
from synthetic_races import synthetic_race

from flows.stage import _log_verdict
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from tasks.benchmark import BenchmarkConfig, benchmark, still_holds
from tasks.benchmark.facts import BenchmarkFacts

Known = Callable[..., tuple[BenchmarkConfig, Workspace, BenchmarkFacts, dict[str, Any]]]


@pytest.fixture
def known(workspace: Callable[..., Workspace]) -> Known:
    """An earlier race of two models, whose speed-up lies between two limits."""

    def raced(low: float, high: float, **settings: Any) -> Any:
        out, models = workspace(), {}
        for name, length in {"fp32": 4, "int8": 1}.items():
            path = out.folder / f"{name}.onnx"
            path.write_bytes(chain(length).SerializeToString())
            models[name] = out.store_file(path)
        samples = {"x": np.zeros((1, SIZE), np.float32)}
        Golden({"real": GoldenCase(samples, {"y": samples["x"]})}, {"y": samples["x"]}).save(out.folder / "golden.npz")
        given = {"models": models, "golden": out.store_file(out.folder / "golden.npz")}
        how = {"rounds": 7, "block_ms": 2, "threads": 1, "batch_sizes": (1,), "restart_processes": False}
        quiet = {"profile": False, "max_aa_deviation": 1e9}  # whatever else is at work here
        config = BenchmarkConfig.model_validate(how | quiet | settings)
        facts = benchmark(config, out, **given).facts
        rows = (facts.result("int8").rows[0].replace(speedup=1e9, speedup_low=low, speedup_high=high),)
        results = (facts.results[0], facts.result("int8").replace(rows=rows))
        return config, out, facts.replace(results=results), given

    return raced


def test_race_holds_where_the_intervals_of_the_fastest_overlap(known: Known) -> None:
    config, out, facts, given = known(0.0, 1e9)
    assert still_holds(config, out, known=facts, **given)


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
