"""What `mlflow.pyfunc.load_model(FOLDER)` needs of a bundle: its `MLmodel` file, and the loader that this names.

The loader is the module itself, as MLflow's `python_function` flavor wants it; MLflow is not imported here.
"""

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gauntlet.bundle.contract import Contract
from gauntlet.core.errors import ConfigError

MLMODEL = "MLmodel"
IMAGE = "image"
"""Name of the column of image files' bytes."""


class ScoringModel:
    """MLflow's view of a bundle."""

    def __init__(self, folder: Path) -> None:
        from gauntlet.bundle.loading import load_bundle

        self.predictor = load_bundle(folder)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return one prediction per sample, as JSON values.

        `model_input` is a table (or a dictionary of lists) with the bytes of image files in its column `image`; for a
        model that takes arrays, a dictionary of arrays by input, each of shape (n, ...).

        Raises:
            ConfigError: for anything else.
            StageError: when an image cannot be read, or an array does not fit.
        """
        columns = _columns(model_input)
        if self.predictor.takes_images and IMAGE in columns:
            predictions = self.predictor.predict([bytes(image) for image in columns[IMAGE]])
        elif columns:
            arrays = {name: np.asarray(values) for name, values in columns.items()}
            predictions = self.predictor.decode(self.predictor.run(arrays))
        else:
            inputs = ", ".join(spec.name for spec in self.predictor.signature.inputs)
            expected = f"a column '{IMAGE}' of bytes" if self.predictor.takes_images else f"arrays by input: {inputs}"
            raise ConfigError(f"expected {expected}; got {type(model_input).__name__}")
        return [prediction.model_dump(mode="json") for prediction in predictions]


def mlmodel_text(contract: Contract, started_at: str, size_bytes: int) -> str:
    """Return the content of `MLmodel`; its signature makes MLflow check inputs, and decode base64 images in JSON."""
    signature = contract.signature
    if signature.takes_images:
        inputs: list[dict[str, Any]] = [{"type": "binary", "name": IMAGE, "required": True}]
    else:
        inputs = [
            {
                "type": "tensor",
                "tensor-spec": {
                    "dtype": spec.dtype,
                    "shape": [axis if isinstance(axis, int) else -1 for axis in spec.shape],
                },
                "name": spec.name,
            }
            for spec in signature.inputs
        ]
    flavor = {"loader_module": __name__, "env": {}, "python_version": platform.python_version()}
    document: dict[str, Any] = {
        "flavors": {"python_function": flavor},
        "metadata": {"gauntlet.run_id": contract.run_id, "gauntlet.candidate": contract.candidate},
        "model_size_bytes": size_bytes,
        "signature": {"inputs": json.dumps(inputs), "outputs": None, "params": None},
        "utc_time_created": started_at,
    }
    return yaml.safe_dump(document, sort_keys=True)


def _load_pyfunc(path: str) -> ScoringModel:
    """Return the model; MLflow calls this with the folder of `MLmodel`."""
    return ScoringModel(Path(path))


def _columns(model_input: Any) -> dict[str, Any]:
    if isinstance(model_input, dict):
        return model_input
    if hasattr(model_input, "columns"):
        return {str(name): model_input[name].tolist() for name in model_input.columns}
    return {}
