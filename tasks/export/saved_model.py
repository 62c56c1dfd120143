"""Export by a SavedModel: the way for every TensorFlow model that is not a Keras network."""

import tempfile
from pathlib import Path
from typing import Any, Literal

from gauntlet.core.signature import Signature
from tasks.export.tensorflow_graph import TensorFlowExport, convert_folder


class SavedModel(TensorFlowExport):
    """`model.export(folder)`, then what `tf2onnx.convert --saved-model folder` does."""

    kind: Literal["saved-model"] = "saved-model"

    def from_network(self, network: Any, signature: Signature, path: Path) -> None:
        """Write a SavedModel first."""
        with tempfile.TemporaryDirectory() as folder:
            network.export(folder, format="tf_saved_model", verbose=False)
            convert_folder(Path(folder), "serving_default", signature, path, self.opset)
