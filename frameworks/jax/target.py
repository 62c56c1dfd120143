"""JAX, as called before export: a baseline."""

from typing import ClassVar, Literal

from gauntlet.targets.base import FrameworkTarget


class JaxJit(FrameworkTarget):
    """A Flax network or a JAX function under `jax.jit`, compiled once for each batch size."""

    kind: Literal["jax-jit"] = "jax-jit"
    engine: ClassVar[str] = "frameworks.jax.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (".npz", ".jax")
    packages: ClassVar[dict[str, str]] = {"jax": "jax", "flax": "jax"}
