"""scikit-learn, as called before export: a baseline."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import FrameworkTarget


class Sklearn(FrameworkTarget):
    """The most informative method: `predict_proba`, else `decision_function`, else `predict` or `transform`."""

    kind: Literal["sklearn"] = "sklearn"
    trusted: tuple[str, ...] = Field((), description="types to load from a file besides those that skops trusts")
    engine: ClassVar[str] = "frameworks.sklearn.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (".skops",)
    packages: ClassVar[dict[str, str]] = {"skops": "sklearn"}

    def engine_options(self) -> JsonObject:
        """Return also the trusted types."""
        return super().engine_options() | {"trusted": list(self.trusted)}
