"""A share that can stand in a candidate's name."""

from typing import Annotated

from pydantic import AfterValidator, Field


def _whole(share: float) -> float:
    if abs(100 * share - round(100 * share)) > 1e-9:
        raise ValueError(f"write a whole percent, for example {max(0.01, round(share, 2))}")
    return share


Percent = Annotated[float, Field(ge=0.01, le=0.99), AfterValidator(_whole)]
"""A share of whole percents: 0.25 is the candidate `pruned-25`."""
