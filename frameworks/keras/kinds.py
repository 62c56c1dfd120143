"""Keras with TensorFlow: networks that are trained or brought, SavedModels, and both as called before export."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from frameworks.keras.brought_model import KerasModel, SavedModelFolder
from frameworks.keras.classifier_training import KerasTraining
from frameworks.keras.exporter import SavedModel, Tf2Onnx
from frameworks.keras.files import GRAPHS, SAVED_MODEL, save_model
from frameworks.keras.files import KERAS as KERAS_FILE
from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import JsonObject
from gauntlet.frameworks.framework import Framework
from gauntlet.targets.base import FrameworkTarget


class _KerasTarget(FrameworkTarget):
    engine: ClassVar[str] = "frameworks.keras.engine"
    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow"}


class KerasEager(_KerasTarget):
    """`model(images, training=False)`, layer by layer."""

    kind: Literal["keras-eager"] = "keras-eager"
    model_suffixes: ClassVar[tuple[str, ...]] = (KERAS_FILE,)

    def engine_options(self) -> JsonObject:
        """Return also that nothing is compiled."""
        return super().engine_options() | {"compile": False, "xla": False}


class KerasCompiled(_KerasTarget):
    """The same call through `tf.function`, compiled by XLA, as in `model.predict` without its loop.

    Keras uses XLA wherever the layers allow it (`jit_compile="auto"`). A model that it cannot compile fails here.
    """

    kind: Literal["keras-compiled"] = "keras-compiled"
    xla: bool = Field(True, description="compile with XLA; without, TensorFlow runs its own graph of the call")
    known_options: ClassVar[tuple[JsonObject, ...]] = ({}, {"xla": False})
    model_suffixes: ClassVar[tuple[str, ...]] = (KERAS_FILE, SAVED_MODEL)
    named_if_changed: ClassVar[dict[str, str]] = {"xla": "graph"}

    def engine_options(self) -> JsonObject:
        """Return also how to compile."""
        return super().engine_options() | {"compile": True, "xla": self.xla}


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
