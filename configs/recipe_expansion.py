"""Expand the key `quantize` into a list of recipes: `auto`, and recipes that contain lists."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.attention import has_attention
from gauntlet.onnx_model.graph import read_untrusted_graph
from gauntlet.runtime.processor import Processor
from tasks.quantize.auto import Operators, recommended_recipes
from tasks.train import TrainConfig

AUTO = "auto"
AUTO_BUDGET_S = 60
AUTO_REPAIR_S = 10
"""A recipe's repair is given less time than by default, because `auto` tries several recipes."""


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
    portability = info.data.get("portability")
    without_vnni = portability is not None and portability.needs_vnni == "reject"
    operators, race = model_kind(info.data.get("train")), info.data.get("benchmark")
    deploy_kinds = [target.kind for target in race.targets if target.name in race.deploy_targets] if race else []
    return recommended_recipes(Processor.current(), operators, without_vnni=without_vnni, deploy_kinds=deploy_kinds)


def with_auto_limits(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration with what `auto` implies for other keys, where they are not set.

    `quantize: auto` has a time limit, and its repairs a shorter one than by default. LoadGen measures the winner in
    this Python environment, so that with it `deploy_targets: auto` adds no runtime of another one.
    """
    if values.get("quantize", AUTO) == AUTO:
        values = {"quantize_budget_s": AUTO_BUDGET_S} | values
        if isinstance(repair := values.get("repair", {}), dict):
            values = values | {"repair": {"budget_s": AUTO_REPAIR_S} | repair}
    benchmark = values.get("benchmark")
    if values.get("loadgen") and isinstance(benchmark, dict) and benchmark.get("deploy_targets") == AUTO:
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


def model_kind(train: TrainConfig | None) -> Operators:
    """Return which operators dominate the models of a `train` part, as far as the configuration shows it."""
    if train is None:
        return "unknown"
    if train.kind == "onnx":
        return "attention" if reads_attention(train.model) else "unknown"
    if train.kind not in ("torch", "torch-detection", "torch-segmentation", "keras", "flax"):
        return "matrices" if train.kind.startswith("sklearn") else "unknown"
    return "attention" if re.search("vit|swin", getattr(train, "architecture", "")) else "convolutions"


def reads_attention(model: Path) -> bool:
    """Return whether an ONNX file has attention; false for one that cannot be read, which a stage will say."""
    try:
        return has_attention(read_untrusted_graph(model).graph)
    except (OSError, StageError):
        return False
