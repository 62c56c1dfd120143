"""PyTorch, as called before export: a baseline."""

from typing import ClassVar, Literal

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import FrameworkTarget


class _TorchTarget(FrameworkTarget):
    engine: ClassVar[str] = "frameworks.torch.engine"
    packages: ClassVar[dict[str, str]] = {"torch": "torch"}
    model_suffixes: ClassVar[tuple[str, ...]] = (".pt2", ".torchscript", ".pt")


class TorchEager(_TorchTarget):
    """A call of the network, operator by operator."""

    kind: Literal["torch-eager"] = "torch-eager"

    def engine_options(self) -> JsonObject:
        """Return also that nothing is compiled."""
        return super().engine_options() | {"compile": False}


class TorchCompiled(_TorchTarget):
    """The network through `torch.compile`, once for each batch size."""

    kind: Literal["torch-compiled"] = "torch-compiled"

    def engine_options(self) -> JsonObject:
        """Return also that the network is compiled."""
        return super().engine_options() | {"compile": True}
