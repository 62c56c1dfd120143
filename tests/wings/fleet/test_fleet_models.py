"""Which models a folder has, and what names each by its content."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest

from configs.loader import presets
from gauntlet.core.errors import ConfigError
from wings.fleet.library.fleet_models import find_models

MODEL = onnx_text.model("m (float[n,4] x) => (float[n,3] y) <float[4,3] w> { y = MatMul(x, w) }")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    for name in ("b.onnx", "a.onnx", "deep/a.onnx"):
        onnx.save(MODEL, tmp_path / name)
    np.savez(tmp_path / "b.npz", x=np.ones((8, 4), np.float32))
    (tmp_path / "weights.pt").write_bytes(b"")
    (tmp_path / ".hidden.onnx").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


def test_models_are_found_by_name_with_their_samples(folder: Path) -> None:
    models = {model.name: model for model in find_models(folder)}
    assert list(models) == ["a.onnx", "b.onnx", "deep/a.onnx", "weights.pt"]
    assert (models["a.onnx"].data, models["b.onnx"].data) == (None, folder / "b.npz")
    config = models["b.onnx"].configure(("benchmark.rounds=6",))
    assert (config.name, config.data.kind, config.benchmark.rounds) == ("b", "arrays", 6)


def test_configuration_stands_for_the_model_beside_it(folder: Path) -> None:
    (folder / "a.yaml").write_text(presets()["digits-small-cnn"].read_text())
    models = {model.name: model for model in find_models(folder)}
    assert list(models) == ["a.yaml", "b.onnx", "deep/a.onnx", "weights.pt"]
    assert models["a.yaml"].configure(()).name == "digits-small-cnn"


def test_model_is_the_same_until_its_content_or_a_setting_changes(folder: Path) -> None:
    def digests(*settings: str) -> dict[str, str]:
        return {model.name: model.digest(settings) for model in find_models(folder)}

    before = digests("a=1")
    assert len(set(before.values())) == 4  # two files with the same content are two models
    assert digests("a=1") == before
    assert not set(digests("a=2").values()) & set(before.values())
    np.savez(folder / "b.npz", x=np.zeros((8, 4), np.float32))
    after = digests("a=1")
    assert [name for name in before if before[name] != after[name]] == ["b.onnx"]


def test_folder_without_models_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model in it; expected files that end in \.yaml, .*\.onnx"):
        find_models(tmp_path)
    with pytest.raises(ConfigError, match="no such folder"):
        find_models(tmp_path / "missing")
