"""A model in MLflow is the file of its candidate, with its weights, wherever they lie."""

from collections.abc import Callable
from pathlib import Path

import mlflow
import numpy as np
import onnx
import pretrained_models
import pytest
from gpu_target import GpuTarget
from mlflow import MlflowClient
from pretrained_models import Made

from flows.servers.database_templates import copy_template
from flows.tracking.events import providers
from flows.tracking.logged_model import log_model
from flows.tracking.server import tracking_uri
from gauntlet.core.signature import signature_from_graph
from gauntlet.onnx_model.model_file import copy_model
from gauntlet.runtime.processor import portability_metadata
from gauntlet.targets import Target
from gauntlet.targets.openvino import OpenVino
from gauntlet.targets.ort import OrtCpu

OPENED = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (GpuTarget(), OPENED),
        (OrtCpu(), ["CPUExecutionProvider"]),
        (OpenVino(precision="f32"), ["CPUExecutionProvider"]),  # not ONNX Runtime, which MLflow loads with
        (None, ["CPUExecutionProvider"]),
    ],
)
def test_model_names_the_provider_that_it_was_measured_on(target: Target | None, expected: list[str]) -> None:
    assert providers(target) == expected


@pytest.mark.parametrize("make", [pretrained_models.two_inputs, pretrained_models.external_data])
def test_logged_model_has_its_weights_and_is_loaded_by_mlflow(tmp_path: Path, make: Callable[[Path], Made]) -> None:
    brought, samples = make(tmp_path)
    stored, database = tmp_path / "store" / "model.onnx", tmp_path / "mlflow.db"
    stored.parent.mkdir()
    copy_model(brought, stored)
    proto = onnx.load(stored, load_external_data=False)
    signature_from_graph(proto).write(proto)
    portability = portability_metadata("needs VNNI", needs_vnni=True, elsewhere="warn")
    onnx.helper.set_model_props(proto, {p.key: p.value for p in proto.metadata_props} | portability)
    onnx.save(proto, stored)
    copy_template("mlflow", database)
    uri = f"sqlite:///{database}"
    with tracking_uri(uri):
        client = MlflowClient(uri)
        experiment = client.create_experiment("brought", (tmp_path / "artifacts").as_uri())
        run = client.create_run(experiment).info.run_id
        named = "brought-static-u8s8-percentile99.99"  # MLflow takes no dot
        model = log_model(run, {"name": named, "params": {}, "tags": {"winner": "true"}, "providers": OPENED}, stored)
        [found] = client.search_logged_models([experiment], "name = 'brought-static-u8s8-percentile99_99'")
        loaded = mlflow.pyfunc.load_model(f"models:/{model}")
        whole = mlflow.onnx.load_model(f"models:/{model}")
    assert found.model_id == model
    assert loaded.metadata.metadata == portability
    assert loaded.metadata.flavors["onnx"]["providers"] == OPENED
    expected = onnx.reference.ReferenceEvaluator(onnx.load(brought)).run(None, samples)
    for name, right in zip((value.name for value in proto.graph.output), expected, strict=True):
        np.testing.assert_allclose(loaded.predict(samples)[name], right, rtol=1e-4, atol=1e-5)
    assert not any(onnx.external_data_helper.uses_external_data(tensor) for tensor in whole.graph.initializer)
    files = [file for file in (tmp_path / "artifacts").rglob("*onnx*") if file.is_file()]
    assert sorted(file.name for file in files) == sorted(file.name for file in stored.parent.iterdir())
    assert not any(file.is_symlink() for file in files)
    assert loaded.metadata.model_size_bytes == sum(file.stat().st_size for file in files)
