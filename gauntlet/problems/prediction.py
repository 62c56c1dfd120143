"""Base class of predictions."""

from gauntlet.core.frozen import Frozen


class Prediction(Frozen):
    """What a model says of one sample, in the terms of its problem."""
