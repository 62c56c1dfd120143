"""Keras, as called before export: a baseline."""

from typing import ClassVar, Literal

from pydantic import Field

from frameworks.keras.files import KERAS, SAVED_MODEL
from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import FrameworkTarget


class _KerasTarget(FrameworkTarget):
    engine: ClassVar[str] = "frameworks.keras.engine"
    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow"}


class KerasEager(_KerasTarget):
    """`model(images, training=False)`, layer by layer."""

    kind: Literal["keras-eager"] = "keras-eager"
    model_suffixes: ClassVar[tuple[str, ...]] = (KERAS,)

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
    model_suffixes: ClassVar[tuple[str, ...]] = (KERAS, SAVED_MODEL)
    named_if_changed: ClassVar[dict[str, str]] = {"xla": "graph"}

    def engine_options(self) -> JsonObject:
        """Return also how to compile."""
        return super().engine_options() | {"compile": True, "xla": self.xla}
