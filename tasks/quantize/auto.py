"""`quantize: auto`: the recipes worth measuring on a processor. What is left out is known to be slower there.

Left out everywhere: QOperator S8S8 and dynamic convolutions (8 and 5 times slower than FP32 on x86-64 with VNNI),
16-bit activations (no convolution becomes an integer kernel), and float16 (CPUs convert it back before they compute).
Accuracy decides between the rest, and the race: nothing here is believed to be faster without being measured.
"""

from collections.abc import Collection
from typing import Literal

from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8
from tasks.ranges.entropy import Entropy
from tasks.ranges.percentile import Percentile
from tasks.runtime.processor import Processor

Operators = Literal["convolutions", "matrices", "unknown"]
"""What a model is mostly made of, as far as the configuration tells before anything ran."""


SUITED = {
    "openvino": StaticInt8(placement="inputs"),
    "ort-openvino": StaticInt8(placement="inputs"),
    "ort-tensorrt": StaticInt8(activations="s8", symmetric=True, placement="inputs"),
}
"""What other runtimes than ONNX Runtime's own kernels want, by kind of target. TensorRT knows no zero points."""


def recipes_for(
    processor: Processor, operators: Operators, *, without_vnni: bool = False, shipping: Collection[str] = ()
) -> tuple[StaticInt8 | DynamicInt8, ...]:
    """Return the recipes for a processor and a kind of model, at most eight, and those that further runtimes want.

    Args:
        processor: that of the race.
        operators: what the model is mostly made of.
        without_vnni: the model must be right on x86 processors without VNNI too, wherever it is measured.
        shipping: kinds of further targets on which the winner may be shipped.
    """
    suited = dict.fromkeys(recipe for kind, recipe in SUITED.items() if kind in shipping)
    return (*_for_the_processor(processor, operators, without_vnni), *suited)


def _for_the_processor(
    processor: Processor, operators: Operators, without_vnni: bool
) -> tuple[StaticInt8 | DynamicInt8, ...]:
    dynamic = DynamicInt8(operators="matmul")
    static = _static(processor, saturates=processor.saturates or without_vnni)
    if operators == "matrices":
        return (*static[:2], dynamic, DynamicInt8(weights="s8", operators="matmul"))
    return static + ((dynamic,) if operators == "unknown" else ())


def _static(processor: Processor, *, saturates: bool) -> tuple[StaticInt8, ...]:
    others: tuple[StaticInt8, ...] = ()
    if processor.architecture in ("aarch64", "arm64"):  # signed products are Arm's fast ones
        usual = StaticInt8(activations="s8")
        others = (usual.replace(symmetric=True, reduce_range=saturates),)
    else:  # elsewhere only unsigned activations become integer kernels
        usual = StaticInt8()
        if saturates:
            others = (StaticInt8(weights="u8", per_channel=False),)
    # Where sums of unsigned by signed bytes saturate, 7-bit or unsigned weights avoid it.
    safe = usual.replace(reduce_range=saturates)
    return (usual, *((safe,) if saturates else ()), *_variants(safe), *others)


def _variants(recipe: StaticInt8) -> tuple[StaticInt8, ...]:
    """Return the recipe with other ranges, with one weight range a tensor, and with a head in float.

    Which of them suits a model is not known before; a head in float costs next to nothing where it is small.
    """
    return (
        recipe.replace(method=Entropy()),
        recipe.replace(method=Percentile(percentile=99.99)),
        recipe.replace(per_channel=False),
        recipe.replace(float_head=True),
    )
