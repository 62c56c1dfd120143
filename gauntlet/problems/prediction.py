"""Base class of predictions."""

from gauntlet.core.frozen import Frozen


class Prediction(Frozen):
    """What a model says of one sample, in the terms of its problem."""

    def lines(self) -> list[str]:
        """Return the prediction for people, the most important part first."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the prediction in one line, for a table."""
        return ", ".join(self.lines())
