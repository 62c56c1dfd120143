"""Sessions: what this runtime takes, how calls are timed, and what a profile of them sums up to."""

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.errors import StageError
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.profiler_trace import summarize_profile
from gauntlet.runtime.session import LEVELS, open_session, supported_ir_version, supported_opset
from gauntlet.runtime.timing import time_calls


@pytest.mark.parametrize("level", LEVELS)
def test_session_answers_the_same_when_the_level_is_another(trained, level: str) -> None:
    golden = Golden.load(trained.store.path(trained.golden))
    inputs = {"input": golden.real.inputs["input"][:5]}
    actual = batched_inference(open_session(trained.path, level=level), inputs).run(5)["logits"]
    np.testing.assert_allclose(actual, golden.real.outputs["logits"][:5], rtol=0, atol=1e-5)


def test_session_is_refused_with_a_stage_error_when_the_model_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"hello")
    for model in (tmp_path / "m.onnx", tmp_path / "absent.onnx", b"hello"):
        with pytest.raises(StageError, match="refuses the model"):
            open_session(model)


def test_failed_call_is_said_by_its_exception_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = onnx_text.save(tmp_path / "model.onnx", "g (float[n] a, float[m] b) => (float[k] y) { y = Add(a, b) }")
    with pytest.raises(Exception, match="broadcast"):
        open_session(Path(model)).run(None, {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)})
    assert capfd.readouterr().err == ""


def test_newest_versions_load_and_the_next_do_not_when_tried(trained) -> None:
    proto = trained.proto()
    proto.ir_version = supported_ir_version()
    open_session(proto.SerializeToString())
    proto.ir_version += 1
    if proto.ir_version <= onnx.IR_VERSION:
        with pytest.raises(StageError):
            open_session(proto.SerializeToString())
    assert 18 <= supported_opset() <= onnx.defs.onnx_opset_version()


FIRST = ("gauntlet.runtime.session", "tasks.quantize.static", "flows.cli.main")


@pytest.mark.parametrize("module", FIRST)
def test_onnx_runtime_keeps_no_device_id(tmp_path: Path, module: str) -> None:
    """It writes one below the home's cache as soon as it is imported, unless this is turned off before."""
    unset = ("CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")  # it is silent in continuous integration anyway
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    code = f"import {module}, onnxruntime, os; assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'"
    subprocess.run([sys.executable, "-c", code], env=environment | {"HOME": str(tmp_path)}, check=True)
    assert not list(tmp_path.rglob(".onnxruntime"))


def test_what_the_user_set_stays() -> None:
    code = "import gauntlet, os; assert os.environ['ORT_DISABLE_TELEMETRY'] == '0'"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "ORT_DISABLE_TELEMETRY": "0"}, check=True)


@pytest.mark.parametrize(
    ("at_least_ms", "limits", "calls"),
    [(0, {}, 1), (0, {"least": 3}, 3), (1e9, {"most": 4}, 4), (0, {"least": 2, "most": 5}, 2)],
)
def test_calls_end_by_time_or_number(at_least_ms: float, limits: dict[str, int], calls: int) -> None:
    samples_ms, last = time_calls(count(1).__next__, at_least_ms, **limits)
    assert (len(samples_ms), last) == (calls, calls)


def test_every_call_is_timed_on_its_own() -> None:
    samples_ms, _ = time_calls(lambda: sleep(0.002), 10)
    assert len(samples_ms) <= 5
    assert min(samples_ms) >= 2


def kernel(node: str, operator: str, ts: int, dur: int) -> dict[str, Any]:
    args = {"op_name": operator, "provider": "CPUExecutionProvider"}
    return {"cat": "Node", "name": f"{node}_kernel_time", "ts": ts, "dur": dur, "args": args}


def call(ts: int, dur: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": dur, "args": {}}


def written(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps(events))
    return path


def test_profile_has_the_known_sums_when_the_trace_is_written_by_hand(tmp_path: Path) -> None:
    events = [kernel("a", "Conv", 10, 9000), call(5, 9900)]  # the first call, which is slow
    for start in (10_000, 20_000, 30_000):
        events += [
            kernel("a", "Conv", start + 10, 400),
            kernel("b", "Conv", start + 410, 200),
            kernel("c", "ReorderOutput", start + 610, 100),
            kernel("d", "QuantizeLinear", start + 710, 50),
            call(start, 1000),
        ]
    profile = summarize_profile(written(tmp_path, *events))
    assert (profile.calls, profile.call_ms) == (3, 1.0)
    assert [(o.operator, o.nodes, round(o.ms, 6), round(o.share, 6)) for o in profile.operators] == [
        ("Conv", 2, 0.6, 0.6),
        ("ReorderOutput", 1, 0.1, 0.1),
        ("QuantizeLinear", 1, 0.05, 0.05),
    ]
    assert [(n.node, n.ms) for n in profile.slowest][:2] == [("a", 0.4), ("b", 0.2)]
    assert (profile.layout_share, profile.qdq_share) == (0.1, 0.05)
    assert profile.non_kernel_share == pytest.approx(0.25)


def test_profile_counts_every_turn_once_when_nodes_are_in_a_loop(tmp_path: Path) -> None:
    events = [
        kernel("loop", "Loop", 10, 900),
        *(kernel("body", "Add", 20 + 100 * i, 100) for i in range(8)),
        call(0, 1000),
    ]
    profile = summarize_profile(written(tmp_path, *events))
    assert [(o.operator, o.ms) for o in profile.operators] == [("Add", 0.8)]
    assert profile.non_kernel_share == pytest.approx(0.2)


def test_profile_is_refused_when_the_trace_has_no_call(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no call"):
        summarize_profile(written(tmp_path, kernel("a", "Conv", 0, 1)))


def test_profile_finds_the_layout_and_the_dear_node_when_a_model_really_runs(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    model = onnx_text.model("""
        turned (float[n,64,?,?] x) => (float[n,?,?,?] y)
        <float[64,64,3,3] w>
        {
            [dear] c = Conv<pads = [1, 1, 1, 1]>(x, w)
            [relu] r = Relu(c)
            [turn] y = Transpose<perm = [0, 2, 3, 1]>(r)
        }
    """)
    onnx.save(model, tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx", level="basic", threads=1, profile_to=tmp_path / "profile")
    for _ in range(6):
        session.run(None, {"x": random.standard_normal((1, 64, 32, 32)).astype(np.float32)})
    profile = summarize_profile(Path(session.end_profiling()))
    assert profile.calls == 5
    assert profile.slowest[0].operator in ("Conv", "FusedConv")
    assert profile.slowest[0].share > 0.2
    assert 0 < profile.layout_share < 0.5
    assert profile.qdq_share == 0
    assert {entry.provider for entry in profile.slowest} == {"CPUExecutionProvider"}
