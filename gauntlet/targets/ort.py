"""What all targets of ONNX Runtime have in common."""

from typing import ClassVar

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import BaseTarget

MODEL = "{model}"
"""Stands in a provider's option for what tells one model from another; the worker knows it, and makes the folder."""


class OrtTarget(BaseTarget):
    """A session with one execution provider; what it does not take runs on the CPU, and is counted."""

    engine: ClassVar[str] = "gauntlet.runtime.engines.ort"
    provider: ClassVar[str]
    device: ClassVar[str | None] = None
    """Where inputs and outputs lie while the clock runs, where that is not the CPU's memory."""

    def provider_options(self) -> dict[str, str]:
        """Return the provider's own options."""
        return {}

    def settings(self) -> dict[str, str]:
        """Return entries of the session's configuration."""
        return {}

    def engine_options(self) -> JsonObject:
        """Return provider, its options and where tensors lie."""
        options: JsonObject = {"provider": self.provider, "provider_options": {**self.provider_options()}}
        if self.settings():
            options["settings"] = {**self.settings()}
        return options | ({"device": self.device} if self.device else {})
