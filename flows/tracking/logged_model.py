"""One ONNX file as an MLflow LoggedModel, with its signature, in its candidate's run.

MLflow takes this module for a flavor, because it has `save_model`. The logged model is of MLflow's own ONNX flavor, but
weights are linked: `mlflow.onnx.log_model` loads the whole model and writes it anew, above 2 GB in several copies.
"""

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import mlflow.onnx
import numpy as np
from mlflow.models import Model, ModelSignature
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.types.schema import Schema, TensorSpec
from mlflow.utils import requirements_utils

from gauntlet.core.signature import Signature
from gauntlet.core.signature import TensorSpec as OurSpec
from gauntlet.core.user_code import installed_packages
from gauntlet.onnx_model.model_file import model_files, read_graph
from gauntlet.runtime.processor import METADATA_KEY

REFUSED = re.compile(r"""[/:.%"']""")  # in the name of a model


def model_name(candidate: str) -> str:
    """Return the name of a candidate's model in MLflow: `percentile99.99` becomes `percentile99_99`."""
    return REFUSED.sub("_", candidate)


def log_model(run_id: str, event: dict[str, Any], path: Path) -> str:
    """Log the file, and those beside it that hold its weights, to the run, and return the model's id."""
    with mlflow.start_run(run_id=run_id):  # in this thread alone; the run's `end` event sets its final state
        info = Model.log(
            artifact_path=None,
            flavor=sys.modules[__name__],
            name=model_name(event["name"]),
            model_type="onnx",
            params=event["params"],
            tags=event["tags"],
            file=path,
            providers=event["providers"],
        )
    return str(info.model_id)


def save_model(path: str, mlflow_model: Model, file: Path, providers: list[str]) -> None:
    """Write what MLflow's ONNX flavor writes to the folder `path`; weights beside `file` are linked, not read."""
    proto = read_graph(file)
    # where the model may run; MLflow's loader neither warns nor refuses
    note = {prop.key: prop.value for prop in proto.metadata_props if prop.key == METADATA_KEY}
    signature, runtime = Signature.read(proto), installed_packages()["onnxruntime"][0]
    with _packages_known():
        mlflow.onnx.save_model(
            proto,
            path,
            mlflow_model=mlflow_model,
            signature=ModelSignature(_schema(signature.inputs), _schema(signature.outputs)),
            pip_requirements=[f"{runtime}=={importlib.metadata.version(runtime)}"],
            onnx_execution_providers=providers,
            metadata=note or None,
            save_as_external_data=False,  # a weight that lies in another file stays there
        )
    for weights in model_files(file)[1:]:
        Path(path, weights.name).symlink_to(weights.resolve())
    mlflow_model.model_size_bytes = sum(part.stat().st_size for part in model_files(file))
    mlflow_model.save(str(Path(path, MLMODEL_FILE_NAME)))


@contextmanager
def _packages_known() -> Iterator[None]:
    """Tell MLflow which packages are installed: to check two requirements, it looks for each file of all, for 2 s."""
    before = requirements_utils._MODULES_TO_PACKAGES
    requirements_utils._MODULES_TO_PACKAGES = dict(installed_packages())  # type: ignore[assignment] # it begins as None
    try:
        yield
    finally:
        requirements_utils._MODULES_TO_PACKAGES = before


def _schema(specs: tuple[OurSpec, ...]) -> Schema:
    """Return MLflow's form of inputs or outputs; a named axis becomes -1."""
    shapes = [tuple(axis if isinstance(axis, int) else -1 for axis in spec.shape) for spec in specs]
    return Schema([TensorSpec(np.dtype(s.dtype), shape, s.name) for s, shape in zip(specs, shapes, strict=True)])
