"""Folders of `.wav` files as samples of a model of waveforms."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from scipy.io import wavfile

from configs.brought_model import infer_config
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from wings.python_api.objects import samples_file

RATE = 8000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write tones of two pitches, 0.1 s long, in folders of their names."""
    for name, pitch in (("high", 880), ("low", 220)):
        (tmp_path / "clips" / name).mkdir(parents=True)
        for number in range(20):
            wave = np.sin(2 * np.pi * pitch * np.arange(800) / RATE + number)
            wavfile.write(tmp_path / "clips" / name / f"{number}.wav", RATE, (32767 * wave).astype(np.int16))
    return tmp_path / "clips"


def model(path: Path, shape: str) -> str:
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, {shape}] wave) => (float[n, 2] scores) {{'
        "flat = Flatten(wave) energy = ReduceL2 <axes = [1]> (flat)"
        "zero = Sub(energy, energy) both = Concat <axis = 1> (energy, zero) scores = Softmax <axis = 1> (both) }"
    )
    onnx.save(proto, path)
    return str(path)


def stored(folder: Path, model: str, **options: str) -> dict[str, np.ndarray]:
    file = samples_file(folder, model, Store(folder.parent / "store"), **options)
    with np.load(str(file)) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.mark.parametrize(
    ("declared", "shape"), [("800", (40, 800)), ("t", (40, 800)), ("1, 1000", (40, 1, 1000)), ("t, 1", (40, 800, 1))]
)
def test_clips_have_the_shape_of_the_input(folder: Path, tmp_path: Path, declared: str, shape: tuple[int, ...]) -> None:
    arrays = stored(folder, model(tmp_path / "m.onnx", declared))
    assert arrays["wave"].shape == shape
    assert 0.99 < np.abs(arrays["wave"]).max() <= 1
    assert sorted(set(arrays["labels"].tolist())) == ["high", "low"]
    if shape[-1] == 1000:
        assert not arrays["wave"][:, 0, 800:].any()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.float32])
def test_every_width_is_scaled_to_one_and_channels_are_averaged(tmp_path: Path, kind: type) -> None:
    wave = np.stack([np.full(100, 0.5), np.zeros(100)], axis=1)
    whole = {np.uint8: 128 + 127 * wave, np.int16: 32767 * wave, np.int32: (2**31 - 1) * wave, np.float32: wave}[kind]
    (tmp_path / "clips").mkdir()
    wavfile.write(tmp_path / "clips" / "a.wav", RATE, whole.astype(kind))
    arrays = stored(tmp_path / "clips", model(tmp_path / "m.onnx", "t"))
    assert "labels" not in arrays
    np.testing.assert_allclose(arrays["wave"], np.full((1, 100), 0.25), atol=0.005)


def test_folders_are_the_classes_of_a_brought_model(folder: Path, tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", "800")
    file = samples_file(folder, path, Store(tmp_path / "store"))
    found = infer_config(Path(path), Path(str(file)), None, {})
    assert found.values["data"]["task"] == "classification"
    assert found.notes["samples"].endswith("class indices ASSUMED to be the labels, sorted")


def test_clips_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 800 samples, and the model takes 500. Fix: cut it"):
        stored(folder, model(tmp_path / "short.onnx", "500"))
    with pytest.raises(ConfigError, match="takes no waveforms"):
        stored(folder, model(tmp_path / "picture.onnx", "1, 64, 64"))
    wavfile.write(folder / "high" / "other.wav", 16000, np.ones(10, np.int16))
    with pytest.raises(ConfigError, match="different sample rates"):
        stored(folder, model(tmp_path / "m.onnx", "t"))
    (folder / "high" / "other.wav").write_bytes(b"RIFF no sound")
    with pytest.raises(ConfigError, match=r"high/other\.wav: not a readable \.wav file"):
        stored(folder, model(tmp_path / "m.onnx", "t"))
    with pytest.raises(ConfigError, match="no column 'speaker' to split by"):
        (folder / "high" / "other.wav").unlink()
        stored(folder, model(tmp_path / "m.onnx", "t"), group="speaker")
