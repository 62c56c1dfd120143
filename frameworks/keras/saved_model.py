"""Export by a SavedModel: the way for every TensorFlow model that is not a Keras network."""

import tempfile
from pathlib import Path
from typing import Any, Literal

from frameworks.keras.conversion import inlined_functions
from frameworks.keras.exporter import TensorFlowExport, convert_folder
from frameworks.keras.model import package_of
from gauntlet.core.signature import Signature


class SavedModel(TensorFlowExport):
    """`model.export(folder)`, then what `tf2onnx.convert --saved-model folder` does."""

    kind: Literal["saved-model"] = "saved-model"

    def from_network(self, network: Any, signature: Signature, path: Path) -> None:
        """Write a SavedModel first."""
        with tempfile.TemporaryDirectory() as folder:
            with inlined_functions():
                options = (
                    {} if package_of(network).__name__ == "tf_keras" else {"format": "tf_saved_model", "verbose": False}
                )
                network.export(folder, **options)
            convert_folder(Path(folder), "serving_default", signature, path, self.opset)
