"""How many calls a contender has, of models whose calls take a known time."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_text
import pytest
from clocked_workers import CLOCK

from gauntlet.race.contender import Contender, Entry, Plan
from gauntlet.race.rounds import run_rounds
from gauntlet.race.rows import row, rows


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 4), np.float32))
    model = onnx_text.model("relu (float[batch,4] x) => (float[batch,4] y) { y = Relu(x) }")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "inputs.npz"


def raced(inputs: Path, *took_ms: float, min_calls: int = 1, **more: Any) -> list[Contender]:
    plan = Plan((1,), 12, block_ms=50, threads=1, timeout_s=60, min_calls=min_calls, restarts=False)
    plan = replace(plan, **more)
    commands = [(sys.executable, "-c", CLOCK, str(duration)) for duration in took_ms]
    entries = {str(i): Entry(inputs.with_name("model.onnx"), command) for i, command in enumerate(commands)}
    return [*run_rounds(entries, inputs, plan)[0].values()]


@pytest.mark.slow
@pytest.mark.parametrize("min_calls", [1, 3])
@pytest.mark.parametrize("took_ms", [5, 16, 17, 20, 50])
def test_equal_models_are_equally_fast(inputs: Path, took_ms: float, min_calls: int) -> None:
    base, same = raced(inputs, took_ms, took_ms, min_calls=min_calls)
    [row] = rows(same, base, resolution=0)
    assert row.speedup == pytest.approx(1, abs=0.01)


def test_contenders_have_as_many_calls_as_the_reference_and_their_ratio_is_right(inputs: Path) -> None:
    base, other, dear = raced(inputs, 16, 17, 160)
    assert base.calls_per_turn == other.calls_per_turn == {1: 2}
    assert dear.calls_per_turn == {1: 1}  # it is ten times slower in any case
    assert len(base.calls_ms[1]) == len(other.calls_ms[1]) == 12 * 3 * 2
    assert max(base.calls_ms[1]) < 16 * 1.2  # the first call of a turn does not count
    [row] = rows(other, base, resolution=0)
    assert row.speedup == pytest.approx(16 / 17, abs=0.01)
    assert [c.untimed_calls[1] for ms in ((41, 82), (30, 41)) for c in raced(inputs, *ms)] == [0, 0, 1, 1]


@pytest.mark.slow
def test_long_calls_at_a_batch_size_that_decides_nothing_end_halfway(inputs: Path) -> None:
    def rounds(took_ms: float, **more: Any) -> list[tuple[int, ...]]:
        contenders = raced(inputs, took_ms, took_ms, batch_sizes=(1, 2), rounds=18, **more)
        measured = [row(c, contenders[0], batch, resolution=0) for c in contenders for batch in (1, 2)]
        assert all(np.isfinite(each.speedup_high) for each in measured)
        return [(*map(len, c.round_medians_ms.values()), len(c.round_peak_bytes)) for c in contenders]

    assert rounds(50, early_stopping=True) == [(18, 9, 9)] * 2  # the peaks of fewer batch sizes cannot be compared
    assert rounds(50) == rounds(5, early_stopping=True) == [(18, 18, 18)] * 2
