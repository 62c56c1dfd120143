"""A bundle runs on the execution provider that its user names, proven there by its golden outputs, or not at all."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from served_bundles import brightness_bundle, spoil_golden_outputs
from server_process import json_request, serving

import gauntlet
from flows.cli.main import main
from gauntlet.bundle.raced_session import execution_provider
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.runtime.engines.ort import OrtEngine


@pytest.mark.parametrize("name", ["cpu", "CPU", "CPUExecutionProvider"])
def test_provider_has_the_winner_s_outputs(tmp_path: Path, name: str) -> None:
    predictor = gauntlet.load(brightness_bundle(tmp_path / "bundle"), provider=name)
    golden = predictor.bundle.golden()
    assert np.allclose(predictor.run(golden.inputs)["y"], golden.outputs["y"])
    assert not predictor.not_as_raced


def test_provider_with_other_outputs_is_refused(tmp_path: Path) -> None:
    bundle = brightness_bundle(tmp_path / "bundle")
    spoil_golden_outputs(bundle)
    with pytest.raises(StageError, match="on cpu, output 'y' differs from its golden values by"):
        gauntlet.load(bundle, provider="cpu")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("abacus", "--provider abacus: unknown; known: cpu, "),
        ("CoreML", "it cannot run here: .*CoreMLExecutionProvider. Fix: choose one that can: .*cpu"),
    ],
)
def test_provider_that_is_not_here_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    bundle = str(brightness_bundle(tmp_path / "bundle"))
    with pytest.raises(ConfigError, match=why):
        gauntlet.load(bundle, provider=name)
    for words in (["predict", bundle, str(Path(__file__))], ["serve", bundle, "--port", "0"]):
        assert main([*words, "--provider", name]) == 2
        assert f"--provider {name}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("tensorrt", marks=pytest.mark.gpu)]
)
def test_bundle_is_loaded_and_served_on_the_provider(tmp_path: Path, name: str) -> None:
    try:
        target = execution_provider(name).name
    except ConfigError as error:
        pytest.skip(str(error))
    bundle = brightness_bundle(tmp_path / "bundle")
    predictor = gauntlet.load(bundle, provider=name)
    unproven = f"brightness won on ort-cpu; on {target}, its speed was not proven"
    assert predictor.not_as_raced == ("" if name == "cpu" else unproven)
    golden = predictor.bundle.golden()
    with serving(tmp_path, bundle, "--provider", name) as server:
        answer = server.post("/v2/models/brightness/infer", json_request(golden.inputs))
    served = np.reshape(answer.json()["outputs"][0]["data"], (-1, 3))
    assert np.allclose(served, golden.outputs["y"], atol=1e-3)


def test_texts_are_not_bound_to_a_device_which_cannot_hold_them(tmp_path: Path) -> None:
    onnx.save(onnx_text.model("m (string[n] x) => (string[n] y) { y = Identity(x) }"), tmp_path / "texts.onnx")
    engine = OrtEngine(tmp_path / "texts.onnx", 1, {"device": "cpu"})
    [texts] = engine.run(["y"], {"x": np.array(["a", "b"])})
    assert [*texts] == ["a", "b"]
