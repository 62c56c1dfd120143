"""JAX itself, as it is called before anything is exported: the baseline that users know."""

from typing import ClassVar, Literal

from tasks.targets.base import BaseTarget


class JaxJit(BaseTarget):
    """A Flax network under `jax.jit`, compiled once for each batch size; nobody calls one without."""

    kind: Literal["jax-jit"] = "jax-jit"
    engine: ClassVar[str] = "tasks.targets.jax_engine"
    sources: ClassVar[tuple[str, ...]] = (".npz",)
    packages: ClassVar[dict[str, str]] = {"jax": "jax", "flax": "jax"}
