"""Base class of ONNX Runtime's targets."""

from typing import ClassVar

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import BaseTarget

MODEL = "{model}"
"""In a provider option, the worker replaces this by a name unique to the model, and creates the folder."""


class OrtTarget(BaseTarget):
    """A session with one execution provider; nodes that it does not support run on the CPU, and are counted."""

    env: str | None = Field(None, description="Python environment: name for `gauntlet targets install`, or folder")
    engine: ClassVar[str] = "gauntlet.runtime.engines.ort"
    fallback: ClassVar[str | None] = "CPUExecutionProvider"
    provider: ClassVar[str]
    device: ClassVar[str | None] = None
    """Device that holds inputs and outputs during timing, if not the CPU."""

    def provider_options(self) -> dict[str, str]:
        """Return the provider's own options."""
        return {}

    def engine_options(self) -> JsonObject:
        """Return the provider, its options and the device of the tensors."""
        options: JsonObject = {"provider": self.provider, "provider_options": {**self.provider_options()}}
        return options | ({"device": self.device} if self.device else {})
