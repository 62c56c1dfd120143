"""Which of the data's arrays each argument of a user's function takes."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature


@dataclass(frozen=True)
class Arguments:
    """The positional arguments of a call, in their order; those with a default come last. Empty where unknown."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @classmethod
    def of(cls, function: Callable[..., Any], skipped: int = 0) -> "Arguments":
        """Return those of a Python function behind the first `skipped`; unknown where it takes any number."""
        try:
            arguments = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # functions of C code may have no signature
            return cls()
        if any(each.kind is each.VAR_POSITIONAL for each in arguments):
            return cls()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        named = [each for each in arguments[skipped:] if each.kind in positional]
        return cls(
            required=tuple(each.name for each in named if each.default is each.empty),
            optional=tuple(each.name for each in named if each.default is not each.empty),
        )

    def call_order(self, arrays: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the arrays in the order of the call.

        They are matched by name: the arrays' own order says nothing about their meaning. Only a single array may have
        another name than the first argument, where the call needs no more than one.

        Raises:
            StageError: when an array or a required argument has no counterpart, with the names of both sides.
        """
        names, known = tuple(arrays), (*self.required, *self.optional)
        if len(names) == 1 and len(self.required) <= 1 and names[0] not in known[1:]:
            return names
        order = known[: len(names)]
        if len(order) < len(self.required) or set(order) != set(names):
            raise StageError(self._mismatch(names))
        return order

    def ordered(self, signature: Signature) -> Signature:
        """Return the signature with its inputs in the order of the call; raise StageError as `call_order`."""
        inputs = {spec.name: spec for spec in signature.inputs}
        return signature.replace(inputs=tuple(inputs[name] for name in self.call_order(inputs)))

    def _mismatch(self, names: tuple[str, ...]) -> str:
        args = [*self.required, *(f"{name} (optional)" for name in self.optional)]
        if not args:
            return (
                f"the model's inputs have no names, so it is unknown which of the data's {', '.join(names)} each one "
                "is. Fix: give each argument a name of its own, and the data's arrays the same names"
            )
        return (
            f"the model takes the inputs {', '.join(args)}; the data has {', '.join(names)}. Fix: give one array for "
            "each input, under its name; an optional input needs all that stand before it"
        )
