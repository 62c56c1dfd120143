"""Execution targets: a runtime, its options and a device. Each reports whether it can run here.

No target replaces another: one that cannot run is `unavailable`, with a reason, and one whose work silently ran
elsewhere fails the checks of `gauntlet.benchmarking.target_validation`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, get_args

from pydantic import Field, ValidationError

from gauntlet.core.errors import ConfigError
from gauntlet.targets.base import FrameworkTarget
from gauntlet.targets.environments import missing
from gauntlet.targets.jax import JaxJit
from gauntlet.targets.keras import KerasCompiled, KerasEager
from gauntlet.targets.openvino import OpenVino
from gauntlet.targets.ort_coreml import OrtCoreMl
from gauntlet.targets.ort_cpu import OrtCpu
from gauntlet.targets.ort_cuda import OrtCuda
from gauntlet.targets.ort_openvino import OrtOpenVino
from gauntlet.targets.ort_providers import OrtProviders
from gauntlet.targets.ort_qnn import OrtQnn
from gauntlet.targets.ort_rocm import OrtRocm
from gauntlet.targets.ort_tensorrt import OrtTensorRt
from gauntlet.targets.ort_web import OrtWeb
from gauntlet.targets.sklearn import Sklearn
from gauntlet.targets.torch import TorchCompiled, TorchEager

OnnxRuntime = OrtOpenVino | OrtWeb | OrtProviders
Framework = TorchEager | TorchCompiled | KerasEager | KerasCompiled | JaxJit | Sklearn
Device = OrtCuda | OrtTensorRt | OrtCoreMl | OrtQnn | OrtRocm
Target = Annotated[OrtCpu | OpenVino | OnnxRuntime | Framework | Device, Field(discriminator="kind")]

KINDS: dict[str, type[Target]] = {str(t.model_fields["kind"].default): t for t in get_args(get_args(Target)[0])}

DEFAULT_TARGETS: tuple[Target, ...] = tuple(
    kind.model_validate(options) for kind in KINDS.values() for options in kind.known_options
)
"""The targets that the command line knows by name; others are written with their options."""


AUTO_TARGETS: tuple[Target, ...] = (OpenVino(),)
"""What `deploy_targets: auto` adds where it is installed: runtimes for this machine's processor. OpenVINO as a provider
of ONNX Runtime is as fast as by itself; a GPU is named by those who deploy on one."""


def installed_targets() -> tuple[Target, ...]:
    """Return those of `AUTO_TARGETS` whose environment is installed; that it works is seen in the race."""
    return tuple(target for target in AUTO_TARGETS if target.env and missing(target.env) is None)


def by_name(name: str) -> Target:
    """Return a default target by its name, or a kind with its default options.

    Raises:
        ConfigError: when the name is unknown.
    """
    known = {kind: target() for kind, target in KINDS.items()} | {target.name: target for target in DEFAULT_TARGETS}
    if name not in known:
        raise ConfigError(f"unknown target {name!r}; available: {', '.join(t.name for t in DEFAULT_TARGETS)}")
    return known[name]


def trusting(targets: Iterable[Target]) -> tuple[Target, ...]:
    """Return the targets with those of frameworks allowed to run the code that their file brings."""
    return tuple(t.replace(trust=True) if isinstance(t, FrameworkTarget) else t for t in targets)


def with_options(options: Mapping[str, str]) -> Target:
    """Return a target from command-line text: its kind, and its options.

    Raises:
        ConfigError: when the kind or an option is unknown, or a value is invalid.
    """
    kind = KINDS.get(options.get("kind", ""))
    if kind is None:
        raise ConfigError(f"unknown target kind={options.get('kind', '')}; available: {', '.join(KINDS)}")
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
