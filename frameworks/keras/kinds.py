"""Keras with TensorFlow: networks that are trained or brought, and SavedModels."""

from pathlib import Path

from frameworks.keras.brought_model import KerasModel, SavedModelFolder
from frameworks.keras.classifier_training import KerasTraining
from frameworks.keras.exporter import SavedModel, Tf2Onnx
from frameworks.keras.files import GRAPHS, save_model
from frameworks.keras.target import KerasCompiled, KerasEager
from gauntlet.core.errors import ConfigError
from gauntlet.frameworks.framework import Framework


def recognize(source: str) -> str | None:
    """Return the kind of `train` for a folder with a SavedModel's graph; raise `ConfigError` for TensorFlow Lite."""
    if source.lower().endswith(".tflite"):
        fix = f"python -m tf2onnx.convert --tflite {source} --output {Path(source).stem}.onnx"
        raise ConfigError(f"{source}: a file of TensorFlow Lite. Fix: give the model before its conversion, or {fix}")
    return "saved-model" if any((Path(source) / name).is_file() for name in GRAPHS) else None


KERAS = Framework(
    name="keras",
    train=(KerasTraining, KerasModel, SavedModelFolder),
    export=(Tf2Onnx, SavedModel),
    target=(KerasEager, KerasCompiled),
    suffixes={".keras": "keras-model", ".h5": "keras-model"},
    archives=(".keras",),
    modules=dict.fromkeys(("tensorflow", "keras", "tf_keras", "tf2onnx"), "tensorflow"),
    recognize=recognize,
    save=save_model,
)
