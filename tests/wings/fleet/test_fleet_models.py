"""Which models a folder has, what names each by its content, and the page of a fleet."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest

from configs.loader import presets
from gauntlet.core.errors import ConfigError
from wings.fleet.library.fleet_models import find_models
from wings.fleet.library.fleet_report import FleetReport, FleetResult, render_fleet

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


def test_configuration_is_another_model_when_a_file_that_it_names_changes(folder: Path, tmp_path: Path) -> None:
    model, samples = folder / "deep" / ".network" / "model.onnx", folder / "deep" / "samples.arrays.npz"
    model.parent.mkdir()
    onnx.save(MODEL, model)
    np.savez(samples, x=np.ones((64, 4), np.float32))
    text = f"train: {{kind: onnx, model: {model}}}\ndata: {{kind: arrays, path: {samples}}}\n"
    (folder / "run.yaml").write_text(text)

    def digest() -> str:
        return next(model.digest(()) for model in find_models(folder) if model.name == "run.yaml")

    before = digest()
    assert digest() == before
    np.savez(samples, x=np.zeros((64, 4), np.float32))
    with_other_samples = digest()
    onnx.save(onnx_text.model("m (float[n,4] x) => (float[n,4] y) { y = Relu(x) }"), model)
    assert len({before, with_other_samples, digest()}) == 3


def test_model_is_another_one_when_weights_with_a_name_of_their_own_change(folder: Path) -> None:
    weights = {"w": np.ones((4, 3), np.float32)}
    proto = onnx_text.model("m (float[n,4] x) => (float[n,3] y) <float[4,3] w> { y = MatMul(x, w) }", weights)
    onnx.save(proto, folder / "a.onnx", save_as_external_data=True, location="numbers.bin", size_threshold=0)
    [model] = [model for model in find_models(folder) if model.name == "a.onnx"]
    before = model.digest(())
    (folder / "numbers.bin").write_bytes(bytes(4 * 12))
    assert model.digest(()) != before


def test_link_to_a_missing_model_is_a_model_that_is_refused(folder: Path) -> None:
    (folder / "gone.onnx").symlink_to(folder / "nowhere" / "gone.onnx")
    [model] = [model for model in find_models(folder) if model.name == "gone.onnx"]
    with pytest.raises(ConfigError, match=r"gone\.onnx: no such file"):
        model.configure(())


def test_folder_whose_name_is_not_utf_8_is_one_clear_error(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"caf\\xe9: the name is not UTF-8. Fix: rename the folder"):
        find_models(folder)


def test_folder_without_models_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model in it; expected files that end in \.yaml, .*\.onnx"):
        find_models(tmp_path)
    with pytest.raises(ConfigError, match="no such folder"):
        find_models(tmp_path / "missing")


SMALL = FleetResult(
    model="a/small.onnx",
    verdict="passed",
    run_id="20260101-000000-small-ab12",
    winner="static-u8s8",
    speedup=1.72,
    speedup_low=1.68,
    speedup_high=1.75,
    metric="accuracy",
    quality=0.987,
    size_bytes=1_000_000,
    original_size_bytes=4_000_000,
    seconds=12,
)
BROKEN = FleetResult(model="<b>.onnx", verdict="invalid", reason="<b>.onnx: not an ONNX file")


def report(*results: FleetResult) -> FleetReport:
    return FleetReport(
        fleet_id="f",
        folder="/models",
        settings=("a=1",),
        started_at="2026-01-01T00:00:00+00:00",
        seconds=60,
        results=results,
    )


def test_page_names_every_model_with_its_verdict_and_links_to_its_run() -> None:
    page = render_fleet(report(SMALL, BROKEN))
    assert "1 of 2 passed" in page
    assert 'href="../../runs/20260101-000000-small-ab12/report.html"' in page
    assert "1.72x [1.68, 1.75]" in page
    assert "98.7 % accuracy" in page
    assert "1.0 MB of 4.0 MB" in page
    assert "&lt;b&gt;.onnx: invalid" in page
    assert "<b>.onnx" not in page
    assert "<script" not in page


def test_page_of_a_fleet_that_passed_has_no_list_of_failures() -> None:
    page = render_fleet(report(SMALL))
    assert "1 of 1 passed" in page
    assert "Not passed" not in page
