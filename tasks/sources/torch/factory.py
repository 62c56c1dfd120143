"""A user's own network: `module:function` makes it, and its source travels with the weights."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue

from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.sources.torch.code import Code

if TYPE_CHECKING:
    import torch


class Made(Frozen):
    """How to build a network that a function of the user's makes."""

    kind: Literal["made"] = "made"
    code: Code
    arguments: dict[str, JsonValue] = Field(default_factory=dict)

    def build(self) -> "torch.nn.Module":
        """Call the function; the weights are whatever it gives them.

        Raises:
            StageError: when it fails, or returns something else.
        """
        import torch

        make: Callable[..., Any] = self.code.function()
        try:
            made = make(**self.arguments)
        except Exception as error:  # the user's code may raise anything
            raise StageError(
                f"train.factory: {self.code.name} fails with the arguments {self.arguments}: "
                f"{type(error).__name__}: {error}; train.arguments names what it is called with"
            ) from error
        if not isinstance(made, torch.nn.Module):
            raise StageError(f"train.factory: {self.code.name} returns {type(made).__name__}; return a torch.nn.Module")
        return made
