"""Keras itself, as it is called before anything is exported: the baseline that users know."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.frameworks.keras.files import KERAS, SAVED_MODEL
from gauntlet.targets.base import BaseTarget

PACKAGES = {"keras": "tensorflow", "tensorflow": "tensorflow"}


class KerasEager(BaseTarget):
    """`model(pictures, training=False)`, layer by layer."""

    kind: Literal["keras-eager"] = "keras-eager"
    engine: ClassVar[str] = "gauntlet.frameworks.keras.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (KERAS,)
    packages: ClassVar[dict[str, str]] = PACKAGES

    def engine_options(self) -> JsonObject:
        """Return that nothing is compiled."""
        return {"compile": False, "xla": False}


class KerasCompiled(BaseTarget):
    """The same call through `tf.function`, compiled by XLA: what `model.predict` does inside, without its loop.

    Keras asks XLA wherever the layers allow it (`jit_compile="auto"`). A model that it cannot compile fails here.
    """

    kind: Literal["keras-compiled"] = "keras-compiled"
    xla: bool = Field(True, description="let XLA compile it; without, TensorFlow runs its own graph of the call")
    engine: ClassVar[str] = "gauntlet.frameworks.keras.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (KERAS, SAVED_MODEL)
    packages: ClassVar[dict[str, str]] = PACKAGES

    def name_suffix(self) -> tuple[str, ...]:
        """Return what differs from the usual."""
        return () if self.xla else ("graph",)

    def engine_options(self) -> JsonObject:
        """Return how to compile."""
        return {"compile": True, "xla": self.xla}
