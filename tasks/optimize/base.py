"""What every graph pass has."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from gauntlet.core.frozen import Kind


class Pass(Kind, ABC):
    """A kind of `optimize` that rewrites a model's graph."""

    fuses_attention: ClassVar[bool] = False
    """Whether it turns attention into ONNX Runtime's own operators."""

    @property
    def keeps_products(self) -> bool:
        """Whether recipes can quantize the products of the model that it makes."""
        return True

    @property
    @abstractmethod
    def name(self) -> str:
        """The candidate's name."""

    def halves(self) -> tuple[Self, ...]:
        """Return the two halves of a group of passes; empty for a single pass."""
        return ()

    @abstractmethod
    def apply(self, model: Path, destination: Path) -> None:
        """Write the changed model; any exception drops the pass."""
