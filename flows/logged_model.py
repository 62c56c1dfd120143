"""One ONNX file as an MLflow LoggedModel, with its signature, in its candidate's run."""

import importlib.metadata
from pathlib import Path
from typing import Any

import mlflow
import mlflow.onnx
import numpy as np
import onnx
from mlflow.models import ModelSignature
from mlflow.types.schema import Schema, TensorSpec

from tasks.model_file import is_large
from tasks.signature import Signature
from tasks.signature import TensorSpec as OurSpec


def log_model(run_id: str, event: dict[str, Any], path: Path) -> str:
    """Log the file to the run and return the model's id.

    The fluent call wants an active run; it is made active here, in this thread alone, and the run's final state is set
    by its own `end` event.
    """
    proto = onnx.load(path)
    with mlflow.start_run(run_id=run_id):
        info = mlflow.onnx.log_model(
            proto,
            name=event["name"],
            signature=mlflow_signature(Signature.read(proto)),
            pip_requirements=[f"onnxruntime-gpu=={importlib.metadata.version('onnxruntime-gpu')}"],
            onnx_execution_providers=["CPUExecutionProvider"],
            # Its default empties the model in memory and writes a second file even for a small one.
            save_as_external_data=is_large(proto),
            model_type="onnx",
            params=event["params"],
            tags=event["tags"],
        )
    return str(info.model_id)


def mlflow_signature(signature: Signature) -> ModelSignature:
    """Return MLflow's form of a signature; a named axis becomes -1."""
    return ModelSignature(_schema(signature.inputs), _schema(signature.outputs))


def _schema(specs: tuple[OurSpec, ...]) -> Schema:
    return Schema(
        [
            TensorSpec(np.dtype(s.dtype), tuple(axis if isinstance(axis, int) else -1 for axis in s.shape), s.name)
            for s in specs
        ]
    )
