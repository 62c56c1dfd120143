"""Every member of the union keeps the same promises, and says in one line why it cannot run here."""

import importlib.util
import json
import stat
import sys
from pathlib import Path
from typing import ClassVar

import onnx_text
import pytest
from pydantic import TypeAdapter

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.race.session_options import describe_sessions
from gauntlet.runtime.engines.ort import OrtEngine, provider_failure
from gauntlet.runtime.session import open_session
from gauntlet.targets import ANY, OrtCpu, Target, by_name, default_targets, environments
from gauntlet.targets.base import BaseTarget, unavailable_together

MEMBERS = tuple(ANY.kinds().values())


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.__name__)
def test_member_is_found_by_its_kind_and_survives_json(member: type[BaseTarget]) -> None:
    target = TypeAdapter(Target).validate_python({"kind": member.model_fields["kind"].default})
    assert type(target) is member
    assert TypeAdapter(Target).validate_json(target.model_dump_json()) == target
    assert json.loads(json.dumps(target.options())) == target.options()
    assert importlib.util.find_spec(str(target.options()["engine"])) is not None
    assert Path(target.command()[0]).is_absolute()
    assert target.declared_precision in ("f32", "tf32", "f16", "bf16", "int8")


def test_usual_targets_cover_the_union_and_have_a_name_each() -> None:
    named = {member for member in MEMBERS if member.known_options}  # others are always written with their options
    assert {type(target) for target in default_targets()} == named
    assert len({target.name for target in default_targets()}) == len(default_targets())
    assert all(by_name(target.name) == target for target in default_targets())


def test_name_tells_targets_apart_that_compute_otherwise() -> None:
    targets = [OrtCpu(), OrtCpu(level="basic"), OrtCpu(spinning=False)]
    targets += [OrtCpu(config_entries={"a": "1"}), OrtCpu(config_entries={"a": "2"})]
    assert len({target.name for target in targets}) == len(targets)


@pytest.mark.parametrize("name", ["abacus", "ort-directml"])
def test_unknown_target_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown target '{name}'; available: ort-cpu"):
        by_name(name)


NO_DEVICE = (
    "ONNX Runtime 1.31.1 refuses the model: [ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/onnxruntime/core/"
    "providers/cuda/cuda_call.cc:129 std::conditional_t<THRW, void, onnxruntime::common::Status> onnxruntime::CudaCall("
    "ERRTYPE, const char*, const char*, SUCCTYPE, const char*, const char*, int) [with ERRTYPE = cudaError; "
    "bool THRW = true; SUCCTYPE = cudaError; std::conditional_t<THRW, void> = void] /onnxruntime_src/onnxruntime/core/"
    "providers/cuda/cuda_call.cc:121 CUDA failure 100: no CUDA-capable device is detected ; GPU=32767 ; hostname=box ; "
    "file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider.cc ; line=284 ; expr=cudaSetDevice()"
)
NO_LIBRARY = "[E:onnxruntime] Failed to load library libx.so with error: libcuda.so.1: cannot open shared object file\n"


@pytest.mark.parametrize(
    ("printed", "raised", "told"),
    [
        ("", NO_DEVICE, "CUDA failure 100: no CUDA-capable device is detected"),
        (NO_DEVICE, "the session got CPUExecutionProvider", "CUDA failure 100: no CUDA-capable device is detected"),
        (NO_LIBRARY, "the session got CPUExecutionProvider", "libcuda.so.1: cannot open shared object file"),
        ("", "ONNX Runtime 1.31.1 refuses the model: no\nTensorRT", "no TensorRT"),
        ("", "the session got CPUExecutionProvider", "the session got CPUExecutionProvider"),
    ],
)
def test_reason_is_what_the_device_or_the_loader_says(printed: str, raised: str, told: str) -> None:
    assert provider_failure(printed, raised) == told


@pytest.mark.parametrize("name", ["openvino-bf16", "ort-openvino-f32"])
def test_target_says_how_to_get_its_environment_when_that_is_not_installed(name: str) -> None:
    pytest.importorskip("wings.providers")
    assert "gauntlet targets install" in by_name(name).unavailable()


def test_target_is_unavailable_when_its_folder_is_no_environment(tmp_path: Path) -> None:
    reason = OrtCpu(env=str(tmp_path)).unavailable()
    assert reason == f"env: {tmp_path} has no python (known by name: {', '.join(environments.known())})"


def test_target_runs_in_an_environment_that_is_given_by_its_folder() -> None:
    folder = Path(sys.executable).parents[1].resolve()
    target = OrtCpu(env=str(folder))
    assert target.command()[0] == str(folder / "bin" / Path(sys.executable).name)
    assert target.unavailable() is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import sys; sys.exit('no such library')", "its worker ended with code 1: no such library"),
        ("print('hello')", "its worker ended with code 0"),
        ("import os; os.abort()", "its worker ended with code -6"),
        ('print(\'{"error": "two\\\\nlines"}\')', "two lines"),
    ],
)
def test_target_is_unavailable_when_its_worker_breaks(script: str, told: str) -> None:
    class Broken(BaseTarget):
        kind: str = "broken"
        engine: ClassVar[str] = "gauntlet.runtime.engines.ort"

        def command(self) -> tuple[str, ...]:
            return (sys.executable, "-c", script)

    assert Broken().unavailable() == told


ONE = "import os, sys; print('{\"unavailable\": null}') if len(sys.stdin.readlines()) == 1 else os.abort()"


def test_targets_of_one_engine_are_tried_together_and_alone_where_their_worker_breaks() -> None:
    targets = [target for target in default_targets() if target.kind.startswith("ort-") and not target.environment]
    assert unavailable_together(targets) == [target.unavailable() for target in targets]

    class Fragile(BaseTarget):
        kind: str = "fragile"
        engine: ClassVar[str] = "gauntlet.runtime.engines.ort"
        option: int = 0

        def engine_options(self) -> dict[str, int]:
            return {"option": self.option}

        def command(self) -> tuple[str, ...]:
            return (sys.executable, "-c", ONE)

    assert unavailable_together([Fragile(), Fragile(option=1)]) == [None, None]


def test_target_is_unavailable_when_its_python_cannot_be_started(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/no/such/interpreter\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    assert OrtCpu(env=str(tmp_path)).unavailable().startswith("its worker cannot be started")


BLOCKS = "session.dynamic_block_base"
ALL = OrtCpu(threads=2, memory_pattern=False, inter_op_threads=1, config_entries={BLOCKS: "4"})


def test_options_that_change_the_computation_are_in_the_name() -> None:
    assert ALL.name == f"ort-cpu-2t-nopattern-1branches-{BLOCKS}=4"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (ALL, {"enable_mem_pattern": False, "intra_op_num_threads": 2, "inter_op_num_threads": 1, BLOCKS: "4"}),
        (OrtCpu(threads=2, spinning=False, arena=False, inter_op_threads=2, level="extended"), {}),
    ],
)
def test_options_reach_the_session_of_a_worker_and_that_of_a_bundle(
    target: OrtCpu, expected: dict[str, object], tmp_path: Path
) -> None:
    path, options = tmp_path / "m.onnx", target.session_options(1)
    onnx_text.save(path, "m (float[n,4] x) => (float[n,4] y) { y = Relu(x) }")
    for session in (OrtEngine(path, 1, target.options()).session, open_session(path, overrides=options)):
        got = session.get_session_options()
        for name, value in (expected or options).items():
            found = got.get_session_config_entry(name) if "." in name else getattr(got, name)
            assert getattr(found, "name", found) == value


def test_entry_that_no_bundle_may_have_is_refused_before_the_race() -> None:
    library = OrtCpu(config_entries={"session.load_model_format": "ORT"})
    with pytest.raises(ConfigError, match=r"session\.load_model_format, which a bundle may not have \(allowed: "):
        describe_sessions([OrtCpu(), library], 2, 2)
    with pytest.raises(StageError, match=r"session\.load_model_format.* is not allowed"):
        open_session(b"", overrides=library.session_options(2))
