"""Providers in order: each of them loads, and hybrid placement is only what was asked for."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import onnxruntime
import pytest
from pydantic import ValidationError
from runtime_environments import home_with

from gauntlet.core.errors import ConfigError
from gauntlet.onnx_model.macs import ModelMacs
from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.target_validation import Validation, validate_target
from gauntlet.targets import with_options
from wings.providers.ort_providers import OrtProviders

ABSENT = next(
    name
    for name in ("QNN", "CoreML", "VSINPU")
    if f"{name}ExecutionProvider" not in onnxruntime.get_available_providers()
)


def test_names_are_those_of_onnx_runtime_with_or_without_their_ending() -> None:
    target = OrtProviders(providers=("CUDAExecutionProvider", "CPU"), options_by_provider={"CUDA": {"device_id": "1"}})
    assert target.providers == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert target.name == "ort-providers-cuda-cpu"
    assert target.replace(hybrid=True).name == "ort-providers-cuda-cpu-hybrid"
    assert with_options({"kind": "ort-providers", "providers": "CUDA+CPU", "hybrid": "true"}) == OrtProviders(
        providers=("CUDA", "CPU"), hybrid=True
    )
    options = target.options()
    assert options["provider_options"] == {"device_id": "1"}
    assert options["accepted"] == ["CUDAExecutionProvider"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"providers": []}, "at least 1 item"),
        ({"providers": ["CUDA", "CUDAExecutionProvider"]}, "each provider may be listed once"),
        ({"providers": ["CPU", "CUDA"]}, "the CPU provider takes every node, so that CUDA after it would get none"),
        ({"providers": ["CPU"], "hybrid": True}, "one provider alone, CPUExecutionProvider; list a second one"),
        ({"providers": ["CPU"], "options_by_provider": {"CUDA": {}}}, "CUDAExecutionProvider is not in providers"),
    ],
)
def test_list_that_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OrtProviders.model_validate(options)


def test_command_line_says_what_is_wrong_with_the_providers() -> None:
    with pytest.raises(ConfigError, match=r"target ort-providers: providers: .*each provider may be listed once"):
        with_options({"kind": "ort-providers", "providers": "CPU+CPU"})


def test_provider_that_the_runtime_was_built_without_makes_the_target_unavailable() -> None:
    for names in ((ABSENT, "CPU"), (ABSENT,)):
        assert f"was built without {ABSENT}ExecutionProvider" in str(OrtProviders(providers=names).unavailable())
    assert OrtProviders(providers=("CPU",)).unavailable() is None


def test_first_provider_that_cannot_be_loaded_makes_the_target_unavailable_and_never_falls_back() -> None:
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers() or list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("CUDA is not built in, or there is a GPU")
    for hybrid in (False, True):
        reason = OrtProviders(providers=("CUDA", "CPU"), hybrid=hybrid).unavailable()
        assert reason.startswith("CUDAExecutionProvider: ")
        assert "\n" not in reason


@pytest.mark.parametrize(
    ("placed", "shares"),
    [
        ({"A": [["a", "Conv"]], "B": [["b", "Gemm"]]}, {"A": 0.9, "B": 0.1}),
        ({"A": [["part", ""]], "B": [["b", "Gemm"]], "C": [["r", "Relu"]]}, {"A": 0.9, "B": 0.1, "C": 0}),
        ({"B": [["a", "Conv"], ["b", "Gemm"]]}, {"B": 1}),
    ],
)
def test_shares_add_up_over_the_providers(placed: dict[str, list[list[str]]], shares: dict[str, float]) -> None:
    macs = ModelMacs(False, "f32", {"a": ("Conv", 90), "b": ("Gemm", 10)})
    assert macs.shares("A", placed) == pytest.approx(shares)


@pytest.fixture(scope="module")
def openvino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with home_with(("openvino",), tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture(scope="module")
def split_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two products: one of float32, and one of float64, which OpenVINO leaves to the next provider."""
    folder = tmp_path_factory.mktemp("split")
    proto = onnx_text.model(
        """split (float[n, 32] x) => (float[n, 16] y) <float[32, 64] a, double[64, 16] b> {
          [first] h = MatMul(x, a)
          r = Relu(h)
          d = Cast<to=11>(r)
          [second] e = MatMul(d, b)
          y = Cast<to=1>(e)
        }"""
    )
    onnx.save(proto, folder / "split.onnx")
    np.savez(folder / "in.npz", x=np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32))
    return folder / "split.onnx", folder / "in.npz"


@pytest.mark.slow
@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.usefixtures("openvino")
def test_nodes_that_fall_to_the_second_provider_fail_unless_hybrid_placement_was_asked_for(
    split_model: tuple[Path, Path], hybrid: bool
) -> None:
    found = _validated(split_model, OrtProviders(providers=("OpenVINO", "CPU"), env="openvino", hybrid=hybrid))
    assert found.macs_shares == pytest.approx({"OpenVINOExecutionProvider": 2 / 3, "CPUExecutionProvider": 1 / 3})
    assert found.macs_share == pytest.approx(1 if hybrid else 2 / 3)
    failed = {check.name for check in found.checks if not check.passed}
    assert ("target.macs_share" in failed) == (not hybrid)
    assert "target.first_share" not in failed
    [check] = [check for check in found.checks if check.name == "target.macs_share"]
    assert "33.3% of the MACs" in check.detail


@pytest.mark.slow
@pytest.mark.usefixtures("openvino")
def test_first_provider_of_a_hybrid_target_has_work_to_do(tmp_path: Path) -> None:
    proto = onnx_text.model("only (double[n, 64] x) => (double[n, 16] y) <double[64, 16] b> { y = MatMul(x, b) }")
    onnx.save(proto, tmp_path / "only.onnx")
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(0).standard_normal((4, 64)))
    target = OrtProviders(providers=("OpenVINO", "CPU"), env="openvino", hybrid=True)
    found = _validated((tmp_path / "only.onnx", tmp_path / "in.npz"), target)
    assert found.macs_shares == {"CPUExecutionProvider": 1}
    assert "target.first_share" in {check.name for check in found.checks if not check.passed}
    assert "OpenVINOExecutionProvider comes first, and runs nothing that multiplies" in str(found.reason)


def _validated(files: tuple[Path, Path], target: OrtProviders) -> Validation:
    model, inputs = files
    assert target.unavailable() is None
    return validate_target(model, target, ExpectedOutputs.of(model, inputs, 60), inputs, threads=1, timeout_s=100)
