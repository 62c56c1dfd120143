"""scikit-learn itself, as it is called before anything is exported: the baseline that users know."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import BaseTarget


class Sklearn(BaseTarget):
    """The one method that tells most: `predict_proba`, else `decision_function`, else `predict` or `transform`."""

    kind: Literal["sklearn"] = "sklearn"
    trusted: tuple[str, ...] = Field(
        (), description="types that a file may hold besides those that skops trusts by itself"
    )
    engine: ClassVar[str] = "gauntlet.frameworks.sklearn.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (".skops",)
    packages: ClassVar[dict[str, str]] = {"skops": "sklearn"}

    def engine_options(self) -> JsonObject:
        """Return what is trusted."""
        return {"trusted": list(self.trusted)}
