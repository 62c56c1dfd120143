"""Races of real models that confirm what was selected."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from matmul_chains import SIZE, stored_for_race

from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.race.budget import NO_BUDGET, Budget
from tasks.benchmark import BenchmarkConfig
from tasks.benchmark.facts import BenchmarkFacts
from tasks.select import Decision, SelectConfig, select
from tasks.select.confirm import confirm
from tasks.select.decision import Choice

Confirm = Callable[..., Report[Decision]]


@pytest.fixture
def confirmed(workspace: Callable[..., Workspace]) -> Confirm:
    def run(
        models: dict[str, onnx.ModelProto],
        winner: str,
        target: str = "ort-cpu",
        max_aa_deviation: float = 0.05,
        restart_processes: bool = False,
        batch_sizes: tuple[int, ...] = (1, 2),
        budget: Budget = NO_BUDGET,
        runners_up: tuple[str, ...] = (),
        normalized: str | None = None,
        after: BenchmarkFacts | None = None,
        **settings: Any,
    ) -> Report[Any]:
        out = workspace()
        samples = {"x": np.random.default_rng(0).standard_normal((3, SIZE)).astype(np.float32)}
        given = stored_for_race(out, models, samples)
        config = BenchmarkConfig(
            rounds=8, block_ms=4, threads=1, batch_sizes=batch_sizes, session_variants=[{"level": "off"}],
            restart_processes=restart_processes, max_aa_deviation=max_aa_deviation, profile=False,
        )  # fmt: skip
        note = "; the most exact of 2 equally fast candidates"
        decision = Decision(
            winner=winner, target=target, reason="", note=note, required_speedup=1.05, decisions=(),
            runners_up=tuple(Choice(candidate=name, target=target, session=None, note="") for name in runners_up),
        )  # fmt: skip
        if after is not None:
            return select(SelectConfig(**settings), out, after=after, benchmark=config, budget=budget, **given)
        decision, checks = confirm(
            SelectConfig(**settings),
            config,
            out,
            decision=decision,
            normalized={normalized: given["models"][normalized]} if normalized else {},
            budget=budget,
            **given,
        )
        return Report(stage="select", facts=decision, checks=checks)

    return run
