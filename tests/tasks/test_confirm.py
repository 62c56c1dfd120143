"""The winner is proven once, in a race of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from matmul_chains import SIZE, chain

from gauntlet.benchmarking.budget import NO_BUDGET, Budget
from gauntlet.core.errors import GateFailed
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from tasks.benchmark import BenchmarkConfig
from tasks.confirm import ConfirmFacts, confirm
from tasks.select import SelectConfig, SelectFacts

Confirm = Callable[..., Report[ConfirmFacts]]


@pytest.fixture
def confirmed(workspace: Callable[..., Workspace]) -> Confirm:
    def run(
        models: dict[str, onnx.ModelProto],
        winner: str,
        target: str = "ort-cpu",
        max_aa_deviation: float = 0.05,
        budget: Budget = NO_BUDGET,
        **select: Any,
    ) -> Report[Any]:
        out = workspace()
        kept = {}
        for name, model in models.items():
            path = out.folder / f"{name}.onnx"
            path.write_bytes(model.SerializeToString())
            kept[name] = out.store_file(path)
        samples = {"x": np.random.default_rng(0).standard_normal((3, SIZE)).astype(np.float32)}
        Golden({"real": GoldenCase(samples, {"y": samples["x"]})}, {"y": samples["x"]}).save(out.folder / "golden.npz")
        config = BenchmarkConfig(
            rounds=8, block_ms=4, threads=1, batch_sizes=(1, 2), session_variants=[{"level": "off"}], profile=False,
            max_aa_deviation=max_aa_deviation,
        )  # fmt: skip
        note = "; the most exact of 2 equally fast candidates"
        selection = SelectFacts(winner=winner, target=target, reason="", note=note, required_speedup=1.05, decisions=())
        return confirm(
            config,
            out,
            select=SelectConfig(**select),
            selection=selection,
            models=kept,
            golden=out.store_file(out.folder / "golden.npz"),
            budget=budget,
        )

    return run


def test_faster_candidate_is_confirmed_with_a_new_measurement(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(24), "cheap": chain(1)}, "cheap")
    assert (report.facts.winner, report.facts.confirmed, report.failures) == ("cheap", True, ())
    assert [row.batch for row in report.facts.rows] == [1, 2]
    assert report.facts.reason.endswith("the speed of fp32 at batch 1; the most exact of 2 equally fast candidates")
    assert [check.name for check in report.checks if not check.passed and "aa" not in check.name] == []


def test_equally_fast_candidate_loses_to_the_reference(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(4), "lucky": chain(4)}, "lucky")
    assert (report.facts.winner, report.facts.target, report.facts.confirmed) == ("fp32", "ort-cpu", False)
    assert report.facts.reason.startswith("lucky was fastest, but not proven so again: ")
    [check] = [check for check in report.checks if check.name == "confirm.min_speedup"]
    assert not check.passed
    report.raise_if_blocked()  # a warning: FP32 passed every gate


def test_run_fails_when_a_speed_up_is_required_and_not_confirmed(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(4), "lucky": chain(4)}, "lucky", require_speedup=True)
    with pytest.raises(GateFailed, match=r"confirm\.min_speedup"):
        report.raise_if_blocked()


def test_session_variant_of_the_reference_is_raced_against_the_default_one(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(4)}, "fp32", "ort-cpu-off")
    assert {row.target for row in report.facts.rows} == {"ort-cpu-off"}
    assert (report.facts.winner, report.facts.target) == ("fp32", "ort-cpu")


def test_reference_in_its_default_session_needs_no_second_race(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(1), "slow": chain(4)}, "fp32")
    assert (report.facts.winner, report.facts.race, report.checks) == ("fp32", None, ())


def test_winner_must_be_within_the_budget_as_confirmed(confirmed: Confirm) -> None:
    budget = Budget(max_p50_ms={1: 1e-6}, max_peak_memory_mb=1e6, min_images_per_second={2: 1e-3})
    report = confirmed({"fp32": chain(24), "cheap": chain(1)}, "cheap", budget=budget)
    assert report.facts.winner == "cheap"
    with pytest.raises(GateFailed, match=r"^budget\.max_p50_ms: .* cheap on ort-cpu at batch 1"):
        report.raise_if_blocked()
    assert [c.passed for c in report.checks if c.name.startswith("budget.")] == [False, True, True]


def test_candidate_over_the_budget_loses_to_a_reference_within_it(confirmed: Confirm) -> None:
    heavy = chain(1)
    heavy.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4_000_000, np.float32), "unused"))
    report = confirmed({"fp32": chain(24), "heavy": heavy}, "heavy", budget=Budget(max_size_mb=10))
    assert (report.facts.winner, report.facts.confirmed) == ("fp32", False)
    assert report.facts.objection == "over the budget (max_size_mb 10 MB, measured 16.26)"
    report.raise_if_blocked()


def test_candidate_within_the_budget_needs_no_speed_up_over_a_reference_that_is_not(confirmed: Confirm) -> None:
    heavy = chain(4)
    heavy.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4_000_000, np.float32), "unused"))
    report = confirmed({"fp32": heavy, "small": chain(4)}, "small", budget=Budget(max_size_mb=10))
    assert (report.facts.winner, report.facts.confirmed) == ("small", True)
    report.raise_if_blocked()


def test_noisy_machine_is_a_warning(confirmed: Confirm) -> None:
    report = confirmed({"fp32": chain(24), "cheap": chain(1)}, "cheap", max_aa_deviation=1e-12)
    [check] = [check for check in report.checks if check.name == "confirm.max_aa_deviation"]
    assert (check.passed, check.severity) == (False, "warning")
