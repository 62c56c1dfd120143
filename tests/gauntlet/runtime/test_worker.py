"""The worker's protocol, spoken to the real program, also where nothing but numpy and the runtime can be imported."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import faulty_models
import numpy as np
import onnx
import onnx_text
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.runtime import worker
from gauntlet.runtime.resources import usable_memory_bytes
from gauntlet.runtime.worker import MEMORY_SHARE, RESERVED_BYTES, sqnr_db

MODULE = (sys.executable, "-m", "gauntlet.runtime.worker")
AS_A_FILE = (sys.executable, "-I", str(Path(worker.__file__).resolve()))


def ask(*requests: dict[str, Any], command: tuple[str, ...] = MODULE) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def load(tmp_path: Path) -> dict[str, Any]:
    onnx.save(faulty_models.cnn(), tmp_path / "cnn.onnx")
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(0).standard_normal((5, 3, 16, 16), dtype=np.float32))
    return {"do": "load", "model": str(tmp_path / "cnn.onnx"), "inputs": str(tmp_path / "in.npz"), "threads": 1}


@pytest.mark.parametrize("command", [MODULE, AS_A_FILE], ids=["module", "file"])
def test_worker_answers_every_request_also_as_a_file_on_its_own(load, command, tmp_path: Path) -> None:
    loaded, timed, placed, answered, memory, traced = ask(
        load,
        {"do": "run", "batch": 2, "at_least_ms": 2},
        {"do": "placement"},
        {"do": "write_outputs", "batch": 2, "path": str(tmp_path / "out.npz")},
        {"do": "memory"},
        {"do": "profile", "batch": 1, "calls": 2, "folder": str(tmp_path)},
        command=command,
    )
    assert loaded["load_ms"] > 0
    assert loaded["runtime"].startswith("onnxruntime ")
    assert loaded["fixed_batch"] is None
    assert all(ms > 0 for ms in timed["samples_ms"])
    assert timed["repeatability_db"] == math.inf
    assert [node[1] for node in placed["nodes"]["CPUExecutionProvider"]].count("Conv") == 2
    assert answered == {"outputs": ["y"]}
    assert np.load(tmp_path / "out.npz")["y"].shape == (5, 10)
    assert memory["peak_rss_bytes"] >= memory["rss_bytes"] > 2e7
    events = json.loads(Path(traced["trace"]).read_text())
    assert sum(event["name"] == "model_run" for event in events) == 2


def test_answers_are_the_same_when_inputs_and_outputs_lie_on_a_device(load, tmp_path: Path) -> None:
    """The CPU stands for the device: it is bound and read as a GPU's memory is."""
    for number, device in enumerate((None, "cpu")):
        path = str(tmp_path / f"{number}.npz")
        options = {"device": device} if device else {}
        assert "error" not in ask(load | {"options": options}, {"do": "write_outputs", "batch": 2, "path": path})[1]
    assert np.array_equal(np.load(tmp_path / "0.npz")["y"], np.load(tmp_path / "1.npz")["y"])


def test_output_may_be_called_as_an_argument_of_numpy_savez(tmp_path: Path) -> None:
    model = onnx_text.save(
        tmp_path / "m.onnx",
        "m (float[N] x) => (float[N] file, float[N] allow_pickle) {file = Relu(x) allow_pickle = Neg(x) }",
    )
    np.savez(tmp_path / "in.npz", x=np.float32([-1, 2]))
    loaded = {"do": "load", "model": model, "inputs": str(tmp_path / "in.npz"), "threads": 1}
    _, answered = ask(loaded, {"do": "write_outputs", "batch": 2, "path": str(tmp_path / "out.npz")})
    assert answered == {"outputs": ["file", "allow_pickle"]}
    with np.load(tmp_path / "out.npz") as outputs:
        assert {name: outputs[name].tolist() for name in outputs} == {"file": [0, 2], "allow_pickle": [1, -2]}


def test_timed_call_gets_a_scalar_without_an_axis(tmp_path: Path) -> None:
    text = """m (float[8] x, int64 rows) => (float[r,c] y) <int64[1] first = {0}, int64[1] rest = {-1}>
        { count = Unsqueeze(rows, first) shape = Concat<axis = 0>(count, rest) y = Reshape(x, shape) }"""
    model = onnx_text.save(tmp_path / "m.onnx", text)
    np.savez(tmp_path / "in.npz", x=np.zeros((3, 8), np.float32), rows=np.array([2, 4, 8]))
    loaded = {"do": "load", "model": model, "inputs": str(tmp_path / "in.npz"), "threads": 1}
    _, timed = ask(loaded, {"do": "run", "batch": 1, "calls": 2})
    assert len(timed.get("samples_ms", timed)) == 2, timed


def test_answers_take_the_path_that_is_timed(load, tmp_path: Path) -> None:
    """A device that there is not can be bound in neither."""
    asked = load | {"options": {"device": "abacus"}}
    answers = {"do": "write_outputs", "batch": 2, "path": str(tmp_path / "out.npz")}
    _, timed, answered = ask(asked, {"do": "run", "batch": 2, "at_least_ms": 0}, answers)
    assert "Unsupported device type: abacus" in timed["error"]
    assert "Unsupported device type: abacus" in answered["error"]


def test_load_is_refused_when_the_session_got_another_provider(load) -> None:
    asked = load | {"options": {"provider": "CUDAExecutionProvider"}}
    [refused] = ask(asked)
    if "error" not in refused:
        pytest.skip("CUDA runs here")
    assert refused["error"] == "the session asked for CUDAExecutionProvider and got CPUExecutionProvider"


def on_a_machine_of(memory_bytes: int) -> tuple[str, ...]:
    code = "import sys; from gauntlet.runtime import resources, worker; "
    code += f"resources.usable_memory_bytes = lambda: {memory_bytes}"
    return (sys.executable, "-c", f"{code}; worker.serve(sys.stdin, sys.stdout)")


@pytest.mark.parametrize(
    ("options", "command", "limit"),
    [({"memory_bytes": 300_000_000}, MODULE, "0.3 GB"), ({}, on_a_machine_of(1_200_000_000), "0.6 GB")],
    ids=["stated", "default"],
)
def test_worker_answers_an_error_and_lives_when_it_may_not_have_the_memory(
    load, tmp_path: Path, options: dict[str, Any], command: tuple[str, ...], limit: str
) -> None:
    """Two gigabytes of zeros, from a file of 200 bytes."""
    proto = onnx_text.model("""
        flood (float[batch,1] x) => (float y)
        <int64[2] shape = {1, 700000000}>
        {
            big = Expand(x, shape)
            y = ReduceMax<keepdims = 0>(big)
        }
    """)
    onnx.save(proto, tmp_path / "flood.onnx")
    np.savez(tmp_path / "one.npz", x=np.ones((1, 1), np.float32))
    flood = {"model": str(tmp_path / "flood.onnx"), "inputs": str(tmp_path / "one.npz"), "options": options}
    run = {"do": "run", "batch": 1, "at_least_ms": 0}
    loaded, timed, again = ask(load | flood, run, {"do": "memory"}, command=command)
    assert "load_ms" in loaded
    assert timed["error"].startswith(f"exceeds the memory limit ({limit}): ")
    assert again["peak_rss_bytes"] < 1.5e9


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what is written to")
def test_worker_has_a_limit_of_memory_when_its_target_states_none(load) -> None:
    with subprocess.Popen(MODULE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(load) + "\n")
        process.stdin.flush()
        assert "load_ms" in process.stdout.readline()
        limit, _ = psutil.Process(process.pid).rlimit(psutil.RLIMIT_DATA)
    assert limit == int(MEMORY_SHARE * usable_memory_bytes()) + RESERVED_BYTES


def test_worker_answers_an_error_when_the_request_is_nonsense(load) -> None:
    dance, engine, batch = ask(
        {"do": "dance"},
        load | {"options": {"engine": "gauntlet.runtime.engines.steam"}},
        {"do": "run", "batch": 1, "at_least_ms": 0},
    )
    assert "dance" in dance["error"]
    assert "steam" in engine["error"]
    assert "error" in batch


def test_parity_shows_answers_that_change(tmp_path: Path) -> None:
    """A model that draws random numbers never repeats itself."""
    proto = onnx_text.model("dice (float[n,64] x) => (float[n,64] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    onnx.save(proto, tmp_path / "dice.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones((2, 64), np.float32))
    files = {"model": f"{tmp_path}/dice.onnx", "inputs": f"{tmp_path}/in.npz"}
    run = {"do": "run", "batch": 2, "at_least_ms": 0}
    *_, last = ask({"do": "load", "threads": 1, **files}, run, run)
    assert last["repeatability_db"] < 20


@given(st.integers(1, 6), st.floats(1e-6, 1e-1))
def test_distance_of_two_answers_falls_with_their_difference(scale: int, noise: float) -> None:
    answer = np.random.default_rng(scale).standard_normal((4, 50)) * scale
    near, far = (answer + scale * size * np.ones_like(answer) for size in (noise, 3 * noise))
    assert sqnr_db(answer, answer) == math.inf
    assert sqnr_db(near, answer) - sqnr_db(far, answer) == pytest.approx(20 * math.log10(3), abs=1e-3)


@pytest.mark.parametrize(
    ("actual", "expected", "distance"),
    [
        (np.ones(3), np.ones(4), -math.inf),
        (np.array([np.nan, 1]), np.array([np.nan, 1]), math.inf),
        (np.array([np.nan, 1]), np.array([2.0, 1]), -math.inf),
        (np.array(["a"], object), np.array(["a"], object), math.inf),
        (np.array(["a"], object), np.array(["b"], object), -math.inf),
        (np.ones(3), np.zeros(3), -math.inf),
    ],
)
def test_distance_is_infinite_where_answers_are_equal_or_cannot_be_compared(actual, expected, distance: float) -> None:
    assert sqnr_db(actual, expected) == distance
