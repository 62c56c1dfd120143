"""Where a model can be made to run: a runtime, its options, a device. Each says whether it can run here.

No target ever stands in for another: one that cannot run is `unavailable`, with a reason, and one whose work silently
went somewhere else fails the checks of `gauntlet.benchmarking.target_validation`.
"""

from collections.abc import Mapping
from typing import Annotated, get_args

from pydantic import Field, ValidationError

from gauntlet.core.errors import ConfigError
from gauntlet.targets.jax import JaxJit
from gauntlet.targets.keras import KerasCompiled, KerasEager
from gauntlet.targets.openvino import OpenVino
from gauntlet.targets.ort_coreml import OrtCoreMl
from gauntlet.targets.ort_cpu import OrtCpu
from gauntlet.targets.ort_cuda import OrtCuda
from gauntlet.targets.ort_openvino import OrtOpenVino
from gauntlet.targets.ort_qnn import OrtQnn
from gauntlet.targets.ort_rocm import OrtRocm
from gauntlet.targets.ort_tensorrt import OrtTensorRt
from gauntlet.targets.ort_web import OrtWeb
from gauntlet.targets.sklearn import Sklearn
from gauntlet.targets.torch import TorchCompiled, TorchEager

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
    | OrtQnn
    | OrtRocm,
    Field(discriminator="kind"),
]

DEFAULT_TARGETS: tuple[Target, ...] = (
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
    found = {target.name: target for target in DEFAULT_TARGETS}.get(name) or (KINDS[name]() if name in KINDS else None)
    if found is None:
        raise ConfigError(f"target {name!r}: there is none; there are: {', '.join(t.name for t in DEFAULT_TARGETS)}")
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
