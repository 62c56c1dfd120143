"""`quantize: auto`: the recipes worth measuring on a processor. Those known to be slower there are omitted.

Omitted everywhere: QOperator S8S8 and dynamic convolutions (8 and 5 times slower than FP32 on x86-64 with VNNI),
16-bit activations (no convolution becomes an integer kernel), float16 (CPUs convert it back before they compute), and
ranges by entropy (as fast, and more noise than MinMax and percentile on each network measured).
The accuracy gate and the race decide between the remaining ones.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Any

from pydantic import ValidationInfo

from gauntlet.calibration.methods import Percentile
from gauntlet.core.kinds import kinds
from gauntlet.core.shipping import shipping_stages
from gauntlet.onnx_model.recognition import Operators
from gauntlet.runtime.processor import Processor
from gauntlet.targets import Target
from tasks.quantize.base import Recipe
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8


def recommended_recipes(
    processor: Processor, operators: Operators, *, without_vnni: bool = False, deployed: Collection[Target] = ()
) -> tuple[Recipe, ...]:
    """Return at most eight recipes for the race's processor, and what the targets in `deployed` need besides.

    The most promising come first, because the time for all of them may be limited. With `without_vnni`, the model must
    also stay accurate on x86 processors without VNNI.
    """
    saturates = processor.saturates or without_vnni
    if processor.architecture in ("aarch64", "arm64"):  # Arm's fast kernels multiply signed by signed
        baseline = StaticInt8(activations="s8")
        others = [baseline.replace(symmetric=True, reduce_range=saturates)]
    else:  # elsewhere only unsigned activations run in integer kernels
        baseline = StaticInt8()
        others = [StaticInt8(weights="u8", per_channel=False)] if saturates else []
    # Where sums of unsigned by signed bytes saturate, `reduce_range` or unsigned weights avoid it (28 dB instead of 7).
    safe = baseline.replace(reduce_range=saturates)
    # Which calibration method or weights suit a model is not known in advance. A float head costs almost no time.
    variants = [
        safe.replace(float_head=True),
        safe.replace(per_channel=False),
        *others,
        safe.replace(calibration_method=Percentile(percentile=99.99)),
    ]
    asked = dict.fromkeys(StaticInt8.model_validate(t.int8_options) for t in deployed if t.int8_options)
    wanted = [r.replace(reduce_range=r.reduce_range or (saturates and r.activations == "u8")) for r in asked]
    dynamic, installed = DynamicInt8(op_types="matmul"), kinds("recipe")
    weight_only = [installed["weight-only"](bits=bits) for bits in (8, 4) if "weight-only" in installed]
    recipes: dict[Operators, list[Recipe]] = {
        "convolutions": [*variants],
        "matrices": [variants[0], dynamic, DynamicInt8(weights="s8", op_types="matmul")],
        "attention": [dynamic, DynamicInt8(weights="s8", op_types="matmul"), *weight_only],
        "unknown": [variants[0], dynamic, *variants[1:]],
    }
    return (safe, *(recipe.replace(float_head=True) for recipe in wanted), *recipes[operators], *wanted)


AUTO = "auto"
AUTO_BUDGET_S = 60
KINDS_OF_PROCESSORS = (
    Processor("x86_64", frozenset({"avx2"})),
    Processor("x86_64", frozenset({"avx512_vnni"})),
    Processor("aarch64", frozenset()),
)
"""Each has recipes of its own; one configuration is for all."""


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
    return recipes_for(Processor.current(), info.data)


def recipes_for(processor: Processor, data: Mapping[str, Any]) -> tuple[Recipe, ...]:
    """Return what `auto` means on a processor, with the other keys of a configuration, as far as they are known."""
    stages = shipping_stages().items()
    without_vnni = any(stage.without_vnni(data[name]) for name, stage in stages if name in data)
    train, race = data.get("train"), data.get("benchmark")
    operators: Operators = train.operators if train else "unknown"
    deployed = [target for target in race.targets if target.name in race.deploy_targets] if race else []
    return recommended_recipes(processor, operators, without_vnni=without_vnni, deployed=deployed)


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
