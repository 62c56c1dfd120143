"""A run from Prefect's page: a model file and its samples, or a preset, in a form of five fields."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
import yaml
from harness import QUICK, latest_report
from prefect.utilities.callables import parameter_schema

from flows.record.home import Home
from gauntlet.core.errors import ConfigError
from wings.first_steps import model_flow
from wings.first_steps.model_flow import run_model_or_preset

TEXT = "net (float[n,8] x) => (float[n,4] y) <float[8,4] w> { y = MatMul(x, w) }"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with a folder of its own as the home."""
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    onnx.save(onnx_text.model(TEXT), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32))
    return tmp_path / "net.onnx"


def test_form_has_five_fields_that_are_words_and_each_is_described() -> None:
    fields = parameter_schema(run_model_or_preset.fn).properties
    assert [*fields] == ["model", "data", "labels", "settings", "fresh"]
    assert all(field.get("description") for field in fields.values())
    assert {fields[name].get("type") for name in ("model", "data", "labels")} == {"string"}  # each a line to type in
    file = Path(model_flow.__file__).with_name("prefect.yaml")
    [deployment] = yaml.safe_load(file.read_text())["deployments"]
    assert deployment["entrypoint"] == "wings/first_steps/model_flow.py:run_model_or_preset"
    assert fields.keys() >= deployment["parameters"].keys()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"model": "no-such-preset"}, "no-such-preset"),
        ({"model": "digits-small-cnn", "data": "images"}, "--data is for a model"),
        ({"model": "digits-small-cnn", "settings": ("no.such.key=1",)}, "no"),
    ],
)
def test_wrong_field_is_one_error(how: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_model_or_preset.fn(**how)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_model_file_and_its_samples_end_in_a_report(model: Path) -> None:
    settings = (*(each for each in QUICK if each.startswith(("benchmark", "numerics"))), "quantize=[]")
    run = run_model_or_preset(str(model), str(model.with_name("samples.npz")), settings=settings)
    report = latest_report(Home.find())
    assert (report.run_id, report.name, report.verdict) == (run, "net", "passed")
    assert "Prefect flow run" in report.links
