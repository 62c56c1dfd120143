"""What every graph pass has."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from gauntlet.core.frozen import Frozen


class Pass(Frozen, ABC):
    """A kind of `optimize` that rewrites a model's graph."""

    kind: str

    packages: ClassVar[dict[str, str]] = {}
    """Required package -> the extra that installs it."""
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

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that implement the pass."""
        return ()

    @abstractmethod
    def apply(self, model: Path, destination: Path) -> None:
        """Write the changed model; any exception drops the pass."""
