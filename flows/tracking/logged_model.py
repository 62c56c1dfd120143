"""One ONNX file as an MLflow LoggedModel, with its signature, in its candidate's run.

This module is what MLflow calls a flavor: a module with `save_model`. What is logged is of MLflow's own ONNX flavor,
which loads it; only the weights take another way. `mlflow.onnx.log_model` wants the whole model in memory and writes it
anew: above 2 GB, several copies of it.
"""

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

import mlflow
import mlflow.onnx
import numpy as np
from mlflow.models import Model, ModelSignature
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.types.schema import Schema, TensorSpec

from gauntlet.core.signature import Signature
from gauntlet.core.signature import TensorSpec as OurSpec
from gauntlet.onnx_model.model_file import model_files, read_graph
from gauntlet.runtime.processor import METADATA_KEY
from gauntlet.targets import Target
from gauntlet.targets.ort import OrtTarget

REFUSED = re.compile(r"""[/:.%"']""")
"""What MLflow takes in no model's name."""
CPU = "CPUExecutionProvider"


def model_name(candidate: str) -> str:
    """Return the name of a candidate's model in MLflow: `percentile99.99` becomes `percentile99_99`."""
    return REFUSED.sub("_", candidate)


def providers(target: Target | None) -> list[str]:
    """Return what MLflow's loader, which is ONNX Runtime, opens a model with: the provider that it was measured on.

    It is the CPU's where the model was not measured, or on a target that is not ONNX Runtime in Python.
    """
    return list(dict.fromkeys((target.provider if isinstance(target, OrtTarget) else CPU, CPU)))


def log_model(run_id: str, event: dict[str, Any], path: Path) -> str:
    """Log the file, and those beside it that hold its weights, to the run, and return the model's id.

    The call wants an active run; it is made active here, in this thread alone, and the run's final state is set by its
    own `end` event.
    """
    with mlflow.start_run(run_id=run_id):
        info = Model.log(
            artifact_path=None,
            flavor=sys.modules[__name__],
            name=model_name(event["name"]),
            model_type="onnx",
            params=event["params"],
            tags=event["tags"],
            file=path,
            providers=event.get("providers", [CPU]),  # journals of earlier versions name none
        )
    return str(info.model_id)


def save_model(path: str, mlflow_model: Model, file: Path, providers: list[str]) -> None:
    """Write what MLflow's ONNX flavor writes to the folder `path`; weights beside `file` are linked, not read.

    MLflow's loader neither warns nor refuses: where the model may run is a note in its metadata.
    """
    proto = read_graph(file)
    note = {prop.key: prop.value for prop in proto.metadata_props if prop.key == METADATA_KEY}
    mlflow.onnx.save_model(
        proto,
        path,
        mlflow_model=mlflow_model,
        signature=mlflow_signature(Signature.read(proto)),
        pip_requirements=[f"onnxruntime-gpu=={importlib.metadata.version('onnxruntime-gpu')}"],
        onnx_execution_providers=providers,
        metadata=note or None,
        save_as_external_data=False,  # a weight that lies in another file stays there
    )
    for weights in model_files(file)[1:]:
        Path(path, weights.name).symlink_to(weights.resolve())
    mlflow_model.model_size_bytes = sum(part.stat().st_size for part in model_files(file))
    mlflow_model.save(str(Path(path, MLMODEL_FILE_NAME)))


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
