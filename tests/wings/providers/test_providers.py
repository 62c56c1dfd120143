"""Targets of further execution providers pin their precision, and say in one line why they cannot run here."""

import itertools
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from gauntlet.runtime.engines.ort import with_model_folders
from gauntlet.targets import by_name
from wings.providers.accelerators import OrtCuda, OrtTensorRt

ELSEWHERE = ("ort-coreml", "ort-qnn", "ort-rocm-f32")
NO_GPU = not Path("/dev/nvidiactl").exists()


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))


def test_tf32_is_off_unless_the_name_says_so() -> None:
    assert OrtCuda().name != OrtCuda(tf32=True).name
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


@pytest.mark.parametrize(("key", "option"), [("use_tf32", "tf32"), ("device_id", "device_id")])
def test_property_that_another_option_sets_is_refused(key: str, option: str) -> None:
    with pytest.raises(ValidationError, match=rf"properties\.{key}: {option} sets it; remove it here"):
        OrtCuda(properties={key: "1"})


@pytest.mark.skipif(not NO_GPU, reason="this machine has an NVIDIA GPU")
def test_chosen_options_do_not_hide_why_there_is_no_gpu() -> None:
    reason = OrtCuda(device_id=1, properties={"gpu_mem_limit": "1073741824"}).unavailable()
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


@pytest.mark.skipif(not NO_GPU, reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize(("name", "missing"), [("ort-cuda", "lib"), ("ort-tensorrt-f16", "lib")])
def test_target_of_a_gpu_names_the_library_that_is_missing(name: str, missing: str) -> None:
    reason = by_name(name).unavailable()
    assert reason.startswith(missing)
    assert ".so" in reason
    assert len(reason.splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="one of them might run here")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_target_of_another_system_is_unavailable(name: str) -> None:
    reason = by_name(name).unavailable()
    assert "was built without" in reason
