"""A model in MLflow is the file of its candidate, with its weights, wherever they lie."""

from collections.abc import Callable
from pathlib import Path

import brought_models
import mlflow
import numpy as np
import onnx
import pytest
from brought_models import Made
from mlflow import MlflowClient

from flows.blank import begin_with_tables
from flows.logged_model import log_model
from flows.tracking import tracking_uri
from tasks.model_file import copy_model
from tasks.runtime.processor import stamp
from tasks.signature import describe


@pytest.mark.parametrize("make", [brought_models.two_inputs, brought_models.external_data])
def test_logged_model_has_its_weights_and_is_loaded_by_mlflow(tmp_path: Path, make: Callable[[Path], Made]) -> None:
    brought, samples = make(tmp_path)
    stored, database = tmp_path / "store" / "model.onnx", tmp_path / "mlflow.db"
    stored.parent.mkdir()
    copy_model(brought, stored)
    proto = onnx.load(stored, load_external_data=False)
    describe(proto).write(proto)
    portability = stamp("needs VNNI", needs_vnni=True, elsewhere="warn")
    onnx.helper.set_model_props(proto, {p.key: p.value for p in proto.metadata_props} | portability)
    onnx.save(proto, stored)
    begin_with_tables("mlflow", database)
    uri = f"sqlite:///{database}"
    with tracking_uri(uri):
        client = MlflowClient(uri)
        experiment = client.create_experiment("brought", (tmp_path / "artifacts").as_uri())
        run = client.create_run(experiment).info.run_id
        named = "brought-static-u8s8-percentile99.99"  # MLflow takes no dot
        model = log_model(run, {"name": named, "params": {}, "tags": {"winner": "true"}}, stored)
        [found] = client.search_logged_models([experiment], "name = 'brought-static-u8s8-percentile99_99'")
        loaded = mlflow.pyfunc.load_model(f"models:/{model}")
        whole = mlflow.onnx.load_model(f"models:/{model}")
    assert found.model_id == model
    assert loaded.metadata.metadata == portability
    expected = onnx.reference.ReferenceEvaluator(onnx.load(brought)).run(None, samples)
    for name, right in zip((value.name for value in proto.graph.output), expected, strict=True):
        np.testing.assert_allclose(loaded.predict(samples)[name], right, rtol=1e-4, atol=1e-5)
    assert not any(onnx.external_data_helper.uses_external_data(tensor) for tensor in whole.graph.initializer)
    files = [file for file in (tmp_path / "artifacts").rglob("*onnx*") if file.is_file()]
    assert sorted(file.name for file in files) == sorted(file.name for file in stored.parent.iterdir())
    assert not any(file.is_symlink() for file in files)
    assert loaded.metadata.model_size_bytes == sum(file.stat().st_size for file in files)
