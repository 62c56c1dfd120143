"""Where a model can be made to run: a runtime, its options, a device. Each says whether it can run here.

No target ever stands in for another: one that cannot run is `unavailable`, with a reason, and one whose work silently
went somewhere else fails the checks of `tasks.benchmark.truth`.
"""

from typing import Annotated, get_args

from pydantic import Field

from tasks.errors import ConfigError
from tasks.targets.openvino import OpenVino
from tasks.targets.ort_coreml import OrtCoreMl
from tasks.targets.ort_cpu import OrtCpu
from tasks.targets.ort_cuda import OrtCuda
from tasks.targets.ort_directml import OrtDirectMl
from tasks.targets.ort_openvino import OrtOpenVino
from tasks.targets.ort_qnn import OrtQnn
from tasks.targets.ort_rocm import OrtRocm
from tasks.targets.ort_tensorrt import OrtTensorRt
from tasks.targets.ort_web import OrtWeb
from tasks.targets.torch import TorchCompiled, TorchEager

Target = Annotated[
    OrtCpu
    | OrtCuda
    | OrtTensorRt
    | OrtOpenVino
    | OpenVino
    | OrtWeb
    | TorchEager
    | TorchCompiled
    | OrtCoreMl
    | OrtDirectMl
    | OrtQnn
    | OrtRocm,
    Field(discriminator="kind"),
]

USUAL: tuple[Target, ...] = (
    OrtCpu(),
    OpenVino(precision="f32"),
    OpenVino(precision="bf16"),
    OpenVino(precision="f16"),
    OpenVino(precision="int8"),
    OpenVino(precision="default"),
    OrtOpenVino(),
    OrtWeb(backend="wasm"),
    OrtWeb(backend="webgpu"),
    TorchEager(),
    TorchCompiled(),
    OrtCuda(),
    OrtCuda(tf32=True),
    OrtTensorRt(precision="f32"),
    OrtTensorRt(precision="f16"),
    OrtTensorRt(precision="int8"),
    OrtCoreMl(),
    OrtDirectMl(),
    OrtQnn(),
    OrtRocm(),
)
"""Those that have a name on the command line; any other is written down with its options."""


def by_name(name: str) -> Target:
    """Return one of the usual targets by its name, or a kind with its default options.

    Raises:
        ConfigError: when there is none.
    """
    kinds = {str(member.model_fields["kind"].default): member for member in get_args(get_args(Target)[0])}
    found = {target.name: target for target in USUAL}.get(name) or (kinds[name]() if name in kinds else None)
    if found is None:
        raise ConfigError(f"target {name!r}: there is none; there are: {', '.join(t.name for t in USUAL)}")
    return found
