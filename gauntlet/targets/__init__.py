"""Execution targets: a runtime, its options and a device. Each reports whether it can run here.

No target replaces another: one that cannot run is `unavailable`, with a reason, and one whose work silently ran
elsewhere fails the checks of `gauntlet.race.target_validation`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import ValidationError

from gauntlet.core.errors import ConfigError
from gauntlet.core.kinds import removed
from gauntlet.core.unions import OneOf
from gauntlet.runtime.processor import Processor
from gauntlet.targets.base import BaseTarget, FrameworkTarget
from gauntlet.targets.ort import OrtCpu

ANY = OneOf("target", (OrtCpu,))
Target = Annotated[BaseTarget, ANY]


def default_targets() -> tuple[Target, ...]:
    """Return the targets that the command line knows by name; others are written with their options."""
    kinds: Iterable[type[BaseTarget]] = ANY.kinds().values()
    return tuple(kind.model_validate(options) for kind in kinds for options in kind.known_options)


def installed_targets() -> tuple[Target, ...]:
    """Return the targets of `automatic` that this processor is made for and that are installed."""
    kinds: Iterable[type[BaseTarget]] = ANY.kinds().values()
    targets = [kind.model_validate(options) for kind in kinds for options in kind.automatic]
    fast = {"f32"} | ({"bf16"} if Processor.current().has_bf16 else set())
    return tuple(t for t in targets if t.declared_precision in fast and t.missing() is None)


def by_name(name: str) -> Target:
    """Return a default target by its name, or a kind with its default options.

    Raises:
        ConfigError: when the name is unknown.
    """
    named = {target.name: target for target in default_targets()}
    known: dict[str, Target] = {kind: target() for kind, target in ANY.kinds().items()} | named
    if name not in known:
        fix = removed(f"target.{name}")
        raise ConfigError(f"unknown target {name!r}; available: {', '.join(named)}" + (f". {fix}" if fix else ""))
    return known[name]


def trusting(targets: Iterable[Target]) -> tuple[Target, ...]:
    """Return the targets with those of frameworks allowed to run the code that their file brings."""
    return tuple(t.with_trust() if isinstance(t, FrameworkTarget) else t for t in targets)


def with_options(options: Mapping[str, Any]) -> Target:
    """Return a target from its kind and options, which may be text of a command line.

    Raises:
        ConfigError: when the kind or an option is unknown, or a value is invalid.
    """
    name = str(options.get("kind", ""))
    kind: type[BaseTarget] | None = ANY.kinds().get(name)
    if kind is None:
        problem = f"unknown target kind={name}; available: {', '.join(ANY.kinds())}"
        raise ConfigError(". ".join((problem, *filter(None, [removed(f"target.{name}")]))))
    if "on" in options:
        raise ConfigError(
            f"target {options['kind']}: on: a command races on its own machine; remove `on` and call the command "
            "there, or name the target in benchmark.targets of a pipeline"
        )
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        [first, *_] = error.errors()
        message = ": ".join((f"target {options['kind']}", *map(str, first["loc"]), first["msg"]))
        message += f"; available: {', '.join(kind.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(message) from error
