"""Expand the key `quantize` into a list of recipes: `auto`, and recipes that contain lists."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from pydantic import ValidationInfo

from gauntlet.core.shipping import shipping_stages
from gauntlet.onnx_model.attention import Operators
from gauntlet.runtime.processor import Processor
from tasks.quantize.auto import recommended_recipes

AUTO = "auto"
AUTO_BUDGET_S = 60


def expand_recipes(recipes: Any, info: ValidationInfo) -> Any:
    """Replace `auto` by the recipes that suit this machine's processor, and a recipe with lists by its combinations.

    The report and the stages see only the expanded list.
    """
    if isinstance(recipes, list):
        return [combination for recipe in recipes for combination in combinations(recipe)]
    if not isinstance(recipes, str):
        return recipes
    if recipes != AUTO:
        raise ValueError("write auto, or a list of recipes")
    stages = shipping_stages().items()
    without_vnni = any(stage.without_vnni(info.data[name]) for name, stage in stages if name in info.data)
    train, race = info.data.get("train"), info.data.get("benchmark")
    operators: Operators = train.operators if train else "unknown"
    deploy_kinds = [target.kind for target in race.targets if target.name in race.deploy_targets] if race else []
    return recommended_recipes(Processor.current(), operators, without_vnni=without_vnni, deploy_kinds=deploy_kinds)


def with_auto_limits(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration with what `auto` implies for other keys, where they are not set.

    `quantize: auto` has a time limit, and its repairs a shorter one than by default. A stage that takes the
    winner runs it in this Python environment, so that with it `deploy_targets: auto` adds no runtime of another one.
    """
    if values.get("quantize", AUTO) == AUTO:
        values = {"quantize_budget_s": AUTO_BUDGET_S} | values
        for name, stage in shipping_stages().items():
            if stage.under_auto and isinstance(value := values.get(name, {}), dict):
                values = values | {name: {**stage.under_auto, **value}}
    benchmark = values.get("benchmark")
    here = any(values.get(name) for name, stage in shipping_stages().items() if stage.takes == "winner")
    if here and isinstance(benchmark, dict) and benchmark.get("deploy_targets") == AUTO:
        values = values | {"benchmark": benchmark | {"deploy_targets": ()}}
    return values


def combinations(value: Any) -> Iterator[Any]:
    """Yield every combination of one element from each list in a value; an empty list stays as it is.

    `{kind: static, per_channel: [true, false]}` gives two recipes; two such lists give their product.
    """
    if isinstance(value, list) and value:
        for element in value:
            yield from combinations(element)
    elif isinstance(value, dict):
        for chosen in product(*map(combinations, value.values())):
            yield dict(zip(value, chosen, strict=True))
    else:
        yield value
