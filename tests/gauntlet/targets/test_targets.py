"""Every member of the union keeps the same promises, and says in one line why it cannot run here."""

import importlib.util
import itertools
import json
import stat
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import TypeAdapter, ValidationError

from gauntlet.core.errors import ConfigError
from gauntlet.runtime.engines.ort import provider_failure, with_model_folders
from gauntlet.targets import (
    ANY,
    OpenVino,
    OrtCpu,
    OrtCuda,
    OrtProviders,
    OrtTensorRt,
    Target,
    by_name,
    default_targets,
    environments,
)
from gauntlet.targets.base import BaseTarget

MEMBERS = tuple(ANY.kinds().values())
ELSEWHERE = ("ort-coreml", "ort-qnn", "ort-rocm-f32")
NO_GPU = not Path("/dev/nvidiactl").exists()


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
    written = {OrtProviders}  # always with its options: which providers is for the user to say
    assert {type(target) for target in default_targets()} == set(MEMBERS) - written
    assert len({target.name for target in default_targets()}) == len(default_targets())
    assert all(by_name(target.name) == target for target in default_targets())


def test_name_tells_targets_apart_that_compute_otherwise() -> None:
    targets = [OrtCpu(), OrtCpu(level="basic"), OrtCpu(spinning=False), OpenVino(), OpenVino(device="GPU")]
    targets += [OpenVino(properties={"A": "1"}), OpenVino(properties={"A": "2"}), OrtCuda(), OrtCuda(tf32=True)]
    assert len({target.name for target in targets}) == len(targets)


def test_kind_alone_means_its_default() -> None:
    assert by_name("openvino") == OpenVino(precision="f32")


@pytest.mark.parametrize("name", ["abacus", "ort-directml"])
def test_unknown_target_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown target '{name}'; available: ort-cpu, openvino-f32"):
        by_name(name)


def test_precision_is_always_pinned_except_where_its_lack_is_the_point() -> None:
    hints = {t.precision: t.options()["properties"] for t in default_targets() if isinstance(t, OpenVino)}
    assert hints.pop("default") == {}
    assert {name: hint["INFERENCE_PRECISION_HINT"] for name, hint in hints.items()} == {
        "f32": "f32", "bf16": "bf16", "f16": "f16", "int8": "f32",
    }  # fmt: skip
    assert OrtCuda().options()["provider_options"]["use_tf32"] == "0"
    assert OrtCuda(tf32=True).declared_precision == "tf32"
    assert OrtTensorRt().options()["environment"] == {"NVIDIA_TF32_OVERRIDE": "0"}
    assert "environment" not in OrtTensorRt(precision="tf32").options()


def test_options_of_cuda_reach_the_provider_and_the_name() -> None:
    chosen = OrtCuda(device_id=1, properties={"gpu_mem_limit": str(2 << 30), "cudnn_conv_algo_search": "HEURISTIC"})
    assert chosen.options()["provider_options"] == {
        "use_tf32": "0",
        "device_id": "1",
        "gpu_mem_limit": str(2 << 30),
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    assert chosen.name == "ort-cuda-gpu1-cudnn_conv_algo_search=HEURISTIC-gpu_mem_limit=2147483648"


@pytest.mark.skipif(not NO_GPU, reason="this machine has an NVIDIA GPU")
def test_chosen_options_do_not_hide_why_there_is_no_gpu() -> None:
    reason = OrtCuda(device_id=1, properties={"gpu_mem_limit": "1073741824"}).unavailable()
    assert reason is not None
    assert ".so" in reason


def test_built_engines_are_kept_apart_by_weights_and_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT's cache knows a model by its names, and all of ours are called model.onnx."""
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    places = set()
    for number, precision in itertools.product(range(2), ("f32", "tf32", "int8")):
        model = tmp_path / str(number) / "model.onnx"
        model.parent.mkdir(exist_ok=True)
        model.write_bytes(b"the same graph")
        model.with_name("model.onnx.data").write_bytes(b"weights %d" % number)
        told = OrtTensorRt(precision=precision).options()["provider_options"]
        found = with_model_folders(told, model)
        assert found["trt_engine_cache_path"] == found["trt_timing_cache_path"]
        assert Path(found["trt_engine_cache_path"]).is_dir()
        assert with_model_folders(told, model) == found
        places.add(found["trt_engine_cache_path"])
    assert len(places) == 6
    assert with_model_folders({"use_tf32": "0"}, model) == {"use_tf32": "0"}


def test_engine_has_the_shapes_that_are_set_and_a_folder_of_its_own() -> None:
    """ONNX Runtime takes them as `name:1x3x8x8,other:1x2`."""
    profile = {"min": [1, 3, 8, 8], "opt": [1, 3, 8, 8], "max": [8, 3, 8, 8]}
    state = {"min": [1, 2], "opt": [2, 2], "max": [8, 2]}
    plain = OrtTensorRt()
    shaped = OrtTensorRt.model_validate({"shapes": {"image": profile, "state": state}})
    assert shaped.name == "ort-tensorrt-f32-shaped"
    assert shaped.provider_options() | plain.provider_options() == {
        "trt_profile_min_shapes": "image:1x3x8x8,state:1x2",
        "trt_profile_opt_shapes": "image:1x3x8x8,state:2x2",
        "trt_profile_max_shapes": "image:8x3x8x8,state:8x2",
        **plain.provider_options(),
    }
    place = "trt_engine_cache_path"
    assert shaped.provider_options()[place] != plain.provider_options()[place]


@pytest.mark.parametrize(
    "shapes",
    [
        {"min": [2, 3], "opt": [1, 3], "max": [8, 3]},
        {"min": [1, 3], "opt": [1, 3], "max": [8]},
        {"min": [0, 3], "opt": [1, 3], "max": [8, 3]},
        {"min": [1, 3], "opt": [9, 3], "max": [8, 3]},
    ],
)
def test_shapes_that_are_no_range_are_refused(shapes: dict[str, list[int]]) -> None:
    with pytest.raises(ValidationError, match=r"min \[.*\], opt \[.*\], max \[.*\]; expected equally many axes"):
        OrtTensorRt.model_validate({"shapes": {"image": shapes}})


def test_ort_cpu_is_available() -> None:
    assert OrtCpu().unavailable() is None


@pytest.mark.skipif(not NO_GPU, reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize(("name", "missing"), [("ort-cuda", "lib"), ("ort-tensorrt-f16", "lib")])
def test_target_of_a_gpu_names_the_library_that_is_missing(name: str, missing: str) -> None:
    reason = by_name(name).unavailable()
    assert reason is not None
    assert reason.startswith(missing)
    assert ".so" in reason
    assert len(reason.splitlines()) == 1


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


@pytest.mark.skipif(sys.platform != "linux", reason="one of them might run here")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_target_of_another_system_is_unavailable(name: str) -> None:
    reason = by_name(name).unavailable()
    assert reason is not None
    assert "was built without" in reason


@pytest.mark.parametrize("name", ["openvino-bf16", "ort-openvino-f32"])
def test_target_says_how_to_get_its_environment_when_that_is_not_installed(name: str) -> None:
    reason = by_name(name).unavailable()
    assert reason is not None
    assert "gauntlet targets install" in reason


def test_target_is_unavailable_when_its_folder_is_no_environment(tmp_path: Path) -> None:
    reason = OrtCpu(env=str(tmp_path)).unavailable()
    assert reason == f"env: {tmp_path} has no python (known by name: {', '.join(environments.known())})"


def test_target_runs_in_an_environment_that_is_given_by_its_folder(tmp_path: Path) -> None:
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


def test_target_is_unavailable_when_its_python_cannot_be_started(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/no/such/interpreter\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    reason = OrtCpu(env=str(tmp_path)).unavailable()
    assert reason is not None
    assert reason.startswith("its worker cannot be started")
