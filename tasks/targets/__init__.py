"""Where a model can be made to run: a runtime, its options, a device. Each says whether it can run here.

No target ever stands in for another: one that cannot run is `unavailable`, with a reason, and one whose work silently
went somewhere else fails the checks of `tasks.benchmark.truth`.
"""

from collections.abc import Mapping
from typing import Annotated, get_args

from pydantic import Field, ValidationError

from tasks.errors import ConfigError
from tasks.targets.jax import JaxJit
from tasks.targets.keras import KerasCompiled, KerasEager
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
from tasks.targets.sklearn import Sklearn
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
    | KerasEager
    | KerasCompiled
    | JaxJit
    | Sklearn
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
    KerasEager(),
    KerasCompiled(),
    KerasCompiled(xla=False),
    JaxJit(),
    Sklearn(),
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


KINDS: dict[str, type[Target]] = {
    str(member.model_fields["kind"].default): member for member in get_args(get_args(Target)[0])
}


def by_name(name: str) -> Target:
    """Return one of the usual targets by its name, or a kind with its default options.

    Raises:
        ConfigError: when there is none.
    """
    found = {target.name: target for target in USUAL}.get(name) or (KINDS[name]() if name in KINDS else None)
    if found is None:
        raise ConfigError(f"target {name!r}: there is none; there are: {', '.join(t.name for t in USUAL)}")
    return found


def with_options(options: Mapping[str, str]) -> Target:
    """Return a target as it is written on a command line: its kind, and text for its options.

    Raises:
        ConfigError: when there is no such kind, or it has no such option, or that has no such value.
    """
    kind = KINDS.get(options.get("kind", ""))
    if kind is None:
        raise ConfigError(f"target kind={options.get('kind', '')}: there is none; there are: {', '.join(KINDS)}")
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        [first, *_] = error.errors()
        told = ": ".join((f"target {options['kind']}", *map(str, first["loc"]), first["msg"]))
        told += f"; there are: {', '.join(kind.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(told) from error
