"""`quantize: auto`: the recipes worth measuring on a processor. Those known to be slower there are omitted.

Omitted everywhere: QOperator S8S8 and dynamic convolutions (8 and 5 times slower than FP32 on x86-64 with VNNI),
16-bit activations (no convolution becomes an integer kernel), float16 (CPUs convert it back before they compute), and
ranges by entropy (as fast, and more noise than MinMax and percentile on each network measured).
The accuracy gate and the race decide between the remaining ones.
"""

from collections.abc import Collection

from gauntlet.calibration.methods import Percentile
from gauntlet.core.kinds import kinds
from gauntlet.onnx_model.attention import Operators
from gauntlet.runtime.processor import Processor
from tasks.quantize.base import Recipe
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8

TARGET_RECIPES = {
    "openvino": StaticInt8(qdq_placement="inputs"),
    "ort-openvino": StaticInt8(qdq_placement="inputs"),
    "ort-tensorrt": StaticInt8(activations="s8", symmetric=True, qdq_placement="inputs"),
}
"""Recipes for runtimes other than ONNX Runtime's own kernels, by target kind. TensorRT has no zero points."""


def recommended_recipes(
    processor: Processor, operators: Operators, *, without_vnni: bool = False, deploy_kinds: Collection[str] = ()
) -> tuple[Recipe, ...]:
    """Return at most eight recipes for the race's processor, and one for each kind of target in `deploy_kinds`.

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
    # Where sums of unsigned by signed bytes saturate, 7-bit or unsigned weights avoid it.
    safe = baseline.replace(reduce_range=saturates)
    first = list(dict.fromkeys([baseline, safe]))
    # Which calibration method or weights suit a model is not known in advance. A float head costs almost no time.
    variants = [
        safe.replace(float_head=True),
        safe.replace(per_channel=False),
        *others,
        safe.replace(calibration_method=Percentile(percentile=99.99)),
    ]
    for_targets = dict.fromkeys(recipe for kind, recipe in TARGET_RECIPES.items() if kind in deploy_kinds)
    dynamic, installed = DynamicInt8(op_types="matmul"), kinds("recipe")
    weight_only = [installed["weight-only"](bits=bits) for bits in (8, 4) if "weight-only" in installed]
    recipes: dict[Operators, list[Recipe]] = {
        "convolutions": [*first, *for_targets, *variants],
        "matrices": [*[*first, *variants][:2], dynamic, DynamicInt8(weights="s8", op_types="matmul"), *for_targets],
        "attention": [*first, dynamic, DynamicInt8(weights="s8", op_types="matmul"), *weight_only, *for_targets],
        "unknown": [*first, *for_targets, variants[0], dynamic, *variants[1:]],
    }
    return tuple(recipes[operators])
