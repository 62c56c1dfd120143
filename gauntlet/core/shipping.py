"""Stages that packages bring: for quantized or rejected candidates, for the winner, or for its bundle."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, create_model

from gauntlet.core.kinds import kinds

Model = TypeVar("Model", bound=BaseModel)
Taken = Literal["quantized", "rejected", "chosen", "winner", "bundle"]


@dataclass(frozen=True)
class ShippingStage:
    """The object of an entry point `shipping.NAME`; NAME is also its key in a configuration.

    Its module imports nothing of `configs`, which is built from it.
    """

    function: Callable[..., Any]
    takes: Taken
    """What the function is called with, by name.

    quantized: `model`, a candidate that kept its accuracy, the splits `samples` and `test`, and its `inputs`. Its gate
    can reject the candidate, whose file is its artifact `model` from then on.
    rejected: of each `group`, the most exact file that its accuracy gate rejected, and the most exact accepted one, to
    make another candidate of each: `model`, from which `recipe` quantized `quantized`, the calibration's `prepared` and
    `ranges`, the limits `accuracy`, whether it is `rejected`, and the splits `images`, which no gate uses, and `test`.
    If `model` was pruned, `whole` is the unpruned one, and `priority` that of races. The new candidate's file is its
    artifact `model`; its key's `budget_s` limits its time.
    chosen: a function of the flow, which runs stages of its own: the line, the configuration, the reference and what is
    shipped so far, by place. It returns what is to be shipped.
    winner: `model`, `test`, `golden` and `target`.
    bundle: `bundle`.
    """
    config: Any
    """The type of its key."""
    field: Any
    """Pydantic's `Field` of its key, with the default, with which it does not run."""
    packages: Mapping[str, str]
    """What it needs to run: package -> the extra that brings it."""
    is_configured: Callable[[Any], bool] = bool
    """Whether it runs with a value of its key."""
    inputs: Callable[[Any], Mapping[str, Any]] = lambda _: {}
    """What else it is called with, for a value of its key: what of this machine decides its result."""
    without_vnni: Callable[[Any], bool] = lambda _: False
    """Whether `quantize: auto` must suit processors without VNNI, for a value of its key."""
    under_auto: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its key under `quantize: auto`, which tries several recipes, where they are not set."""
    suffix: str = ""
    """Behind the name of the rejected or chosen candidate: the name of the one that it makes, if it makes one."""
    suffix_of_accepted: str = ""
    """Behind the name of the accepted candidate, as `suffix`; if empty, none is made of it."""
    fits: Callable[..., bool] = lambda *_, **__: True
    """Whether it can make one, for a value of its key, the recipe of the old one, all that were tried, and whether the
    old one was `rejected`, by default it was."""
    group: Callable[[Any], str] = lambda _: ""
    """Of the candidates' recipes: those of one are for the same runtimes."""
    before: str = ""
    """The key that this one stands before, such as one that reads it; the last by default."""


def shipping_stages() -> Mapping[str, ShippingStage]:
    """Return the stages that packages bring, by name."""
    return kinds("shipping")


def with_shipping_keys(model: type[Model]) -> type[Model]:
    """Return the class of a run's configuration with a key for each of these stages."""
    fields: dict[str, Any] = {name: (stage.config, stage.field) for name, stage in shipping_stages().items()}
    made = create_model(model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields)
    order = [*made.model_fields]
    for name, stage in shipping_stages().items():
        if stage.before in order:
            order.remove(name)
            order.insert(order.index(stage.before), name)
    made.__pydantic_fields__ = {name: made.model_fields[name] for name in order}
    made.model_rebuild(force=True)
    return made


def configured_stages(config: BaseModel, *takes: Taken) -> dict[str, ShippingStage]:
    """Return the stages that run with a configuration and take one of these, by name."""
    stages = {name: stage for name, stage in shipping_stages().items() if stage.takes in takes}
    return {name: stage for name, stage in stages.items() if stage.is_configured(getattr(config, name))}
