"""Preprocessing in the graph: the winner that takes uint8 images is a candidate, too."""

from typing import Any

from pydantic import Field

from gauntlet.core.shipping import ShippingStage

SUFFIX = "-uint8"
"""Behind the winner's name: the same with its preprocessing in the graph."""


def preprocess(*arguments: Any) -> Any:
    """Move the preprocessing into the graph; the flow is imported here, because it imports the configuration."""
    from wings.preprocessing.move_preprocessing import move_preprocessing

    return move_preprocessing(*arguments)


IN_GRAPH = ShippingStage(
    preprocess,
    "chosen",
    bool,
    Field(
        False,
        description="also try the winner with its preprocessing in the graph",
        json_schema_extra={"tier": "everyday", "examples": [True]},
    ),
    packages={},
    suffix=SUFFIX,
    before="budget",
)
"""The object of the entry point `shipping.preprocess_in_graph`."""
