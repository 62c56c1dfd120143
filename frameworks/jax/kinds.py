"""JAX: Flax networks that are trained, and functions that are brought."""

import re
from pathlib import Path
from typing import ClassVar, Literal

from frameworks.jax.brought_function import JaxModel
from frameworks.jax.classifier_training import FlaxTraining
from frameworks.jax.jax2onnx import Jax2Onnx
from gauntlet.core.errors import ConfigError
from gauntlet.frameworks.framework import Framework
from gauntlet.targets.base import FrameworkTarget


class JaxJit(FrameworkTarget):
    """A Flax network or a JAX function under `jax.jit`, compiled once for each batch size."""

    kind: Literal["jax-jit"] = "jax-jit"
    engine: ClassVar[str] = "frameworks.jax.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (".npz", ".jax")
    packages: ClassVar[dict[str, str]] = {"jax": "jax", "flax": "jax"}


FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<function>[A-Za-z_]\w*)")
"""`folder/nets.py:predict`."""


def recognize(source: str) -> str | None:
    """Return the kind of `train` for a function in a file."""
    if not (function := FUNCTION.fullmatch(source)):
        return None
    if not Path(function["file"]).is_file():
        raise ConfigError(f"{source}: {function['file']}: no such file")
    return "jax-model"


JAX = Framework(
    name="jax",
    train=(FlaxTraining, JaxModel),
    export=(Jax2Onnx,),
    target=(JaxJit,),
    modules=dict.fromkeys(("jax", "flax", "optax", "equinox", "jax2onnx"), "jax"),
    recognize=recognize,
)
