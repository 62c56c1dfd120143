"""JAX, as called before export: a baseline."""

from typing import ClassVar, Literal

from gauntlet.targets.base import BaseTarget


class JaxJit(BaseTarget):
    """A Flax network under `jax.jit`, compiled once for each batch size."""

    kind: Literal["jax-jit"] = "jax-jit"
    engine: ClassVar[str] = "gauntlet.frameworks.flax.engine"
    model_suffixes: ClassVar[tuple[str, ...]] = (".npz",)
    packages: ClassVar[dict[str, str]] = {"jax": "jax", "flax": "jax"}
