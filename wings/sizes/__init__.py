"""Further sizes of open axes: the winner and the reference race at each, with a verdict for each and for the mix."""

from typing import Any, Literal

from pydantic import Field

from gauntlet.core.shipping import ShippingStage


def sizes(*arguments: Any) -> Any:
    """Race the winner at further sizes; the flow is imported here, because it imports the configuration."""
    from wings.sizes.race_flow import race_winner

    return race_winner(*arguments)


SIZES = ShippingStage(
    sizes,
    "chosen",
    Literal["named", "all", "none"],
    Field(
        "named", description="sizes at which the winner races, too: those that `train` names, or all that are compared"
    ),
    packages={},
    is_configured=lambda chosen: chosen != "none",
    before="budget",
)
"""The object of the entry point `shipping.race_sizes`."""
