"""PyTorch itself, as it is called before anything is exported: the baseline that users know."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import BaseTarget


class TorchEager(BaseTarget):
    """A call of the network, operator by operator."""

    kind: Literal["torch-eager"] = "torch-eager"
    engine: ClassVar[str] = "gauntlet.frameworks.torch.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (".pt",)

    def engine_options(self) -> JsonObject:
        """Return that nothing is compiled."""
        return {"compile": False}


class TorchCompiled(BaseTarget):
    """The network through `torch.compile`, once for each batch size."""

    kind: Literal["torch-compiled"] = "torch-compiled"
    freezing: bool = Field(True, description="let the compiler take the weights for constants, which is faster")
    engine: ClassVar[str] = "gauntlet.frameworks.torch.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (".pt",)

    def name_suffix(self) -> tuple[str, ...]:
        """Return what differs from the usual."""
        return () if self.freezing else ("thawed",)

    def engine_options(self) -> JsonObject:
        """Return how to compile."""
        return {"compile": True, "freezing": self.freezing}
