"""What a client sends changes no other client's outputs, also where the model lets rows of a call change each other."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_text
import pytest
from served_bundles import brightness_bundle, write_bundle
from server_process import ServerProcess, json_request, serving

from gauntlet.core.signature import signature_from_graph
from gauntlet.datasets.golden import GoldenCase
from serving.golden_check import disagreement
from serving.observations import Metrics
from serving.served_model import ServedModel
from serving.settings import Limits

MIXED = """
    mixed (float[n,4] x) => (float[n,4] y) {
      q, s, z = DynamicQuantizeLinear(x)
      y = DequantizeLinear(q, s, z)
    }
"""
PICKY = """
    picky (float[n,4] x) => (float[n,4] y) <int64[1] axis = {1}, float[9, 4] table> {
      top = ReduceMax<keepdims=0>(x, axis)
      index = Cast<to=7>(top)
      y = Gather(table, index)
    }
"""


def bundle_of(folder: Path, text: str) -> Path:
    proto = onnx_text.model(text)
    inputs = {"x": np.linspace(0, 1, 64, dtype=np.float32).reshape(16, 4)}
    latencies = [(1, 0.1), (8, 0.2)]
    signature = signature_from_graph(proto)
    return write_bundle(folder, proto.SerializeToString(), signature, inputs, name="mixed", latencies=latencies)


@pytest.mark.parametrize(("text", "apart"), [(MIXED, True), (PICKY, True), ("", False)])
def test_models_that_may_mix_rows_are_found_when_they_are_loaded(tmp_path: Path, text: str, apart: bool) -> None:
    latencies = [(1, 0.1), (8, 0.2)]
    bundle = bundle_of(tmp_path / "b", text) if text else brightness_bundle(tmp_path / "b", latencies=latencies)
    model = ServedModel.load(bundle, Metrics(), Limits())
    assert (model.apart, model.max_batch) == (apart, 8)
    model.batcher.close()


@pytest.mark.slow
def test_extreme_requests_change_no_outputs_of_other_clients(tmp_path: Path) -> None:
    def ask(server: ServerProcess, value: float) -> list[float]:
        request = json_request({"x": np.full((1, 4), value, np.float32)})
        return list(server.post("/v2/models/mixed/infer", request).json()["outputs"][0]["data"])

    with serving(tmp_path, bundle_of(tmp_path / "b", MIXED)) as server:
        alone, stop = ask(server, 0.7), threading.Event()

        def attack() -> None:
            while not stop.is_set():
                ask(server, 1e4)

        attackers = [threading.Thread(target=attack) for _ in range(6)]
        for attacker in attackers:
            attacker.start()
        outputs = [ask(server, 0.7) for _ in range(200)]
        stop.set()
        for attacker in attackers:
            attacker.join()
        assert outputs == [alone] * 200
        assert "dynamic_batching" not in server.get("/v2/models/mixed/config").json()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda scores: scores + np.float32(0.03) * scores[::-1], ""),  # as INT8 on another processor
        (lambda scores: np.where(np.arange(200) == 7, scores[::-1], scores), "batch 16, output 'y': -"),
        (lambda scores: scores if len(scores) < 64 else -scores, "batch 64, output 'y': -"),
    ],
    ids=["noise", "one class", "large calls"],
)
def test_model_without_its_golden_outputs_is_not_served(spoil: Callable[[np.ndarray], np.ndarray], told: str) -> None:
    scores = np.random.default_rng(0).standard_normal((16, 200)).astype(np.float32)
    golden = GoldenCase({"x": scores}, {"y": scores})
    problem = disagreement(lambda inputs, _: {"y": spoil(inputs["x"])}, golden, {16, 64})
    assert (problem or "").startswith(told)
    assert bool(problem) == bool(told)
