"""Base class of predictions."""

from typing import Self

from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Preprocessing


class Prediction(Frozen):
    """What a model says of one sample, in the terms of its problem."""

    def lines(self) -> list[str]:
        """Return the prediction for people, the most important part first."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the prediction in one line, for a table."""
        return ", ".join(self.lines())

    def on_image(self, height: int, width: int, how: Preprocessing) -> Self:
        """Return the prediction in the pixels of the image of this size, which `how` turns into the model's input."""
        return self
