"""A bundle runs on the execution provider that its user names, proven there by its golden outputs, or not at all."""

from pathlib import Path

import numpy as np
import pytest
from served_bundles import brightness_bundle, spoil_golden_outputs

import gauntlet
from flows.cli.main import main
from gauntlet.bundle.raced_session import execution_provider
from gauntlet.core.errors import ConfigError, StageError


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


@pytest.mark.gpu
def test_outputs_on_the_gpu_are_golden(tmp_path: Path) -> None:
    try:
        execution_provider("cuda")
    except ConfigError as error:
        pytest.skip(str(error))
    predictor = gauntlet.load(brightness_bundle(tmp_path / "bundle"), provider="cuda")
    assert predictor.not_as_raced == "brightness won on ort-cpu; on ort-cuda, its speed was not proven"
