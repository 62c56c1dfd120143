"""Functions of JAX, Flax and Equinox: the layers of their tutorials."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zoo_models.zoo_model import ZooModel, floats, with_samples

HEAD = """from functools import partial
import equinox.nn as eqx, jax, jax.numpy as jnp
from flax import linen, nnx
key, seeds = jax.random.key(0), nnx.Rngs(0)
pooled = partial(linen.avg_pool, window_shape=(2, 2), strides=(2, 2))
def flax(network, *shape):
    variables = network.init(key, jnp.zeros((1, *shape)))
    return lambda x: network.apply(variables, x)
dense = flax(linen.Sequential([linen.Dense(16), linen.relu, linen.LayerNorm(), linen.Dense(3)]), 8)
half = flax(linen.Sequential([linen.Conv(8, (3, 3)), linen.GroupNorm(4), linen.silu, pooled]), 12, 12, 3)
attend, layer = flax(linen.SelfAttention(4), 6, 16), flax(linen.LayerNorm(), 6, 16)
block = nnx.Sequential(nnx.Conv(3, 8, (3, 3), rngs=seeds), nnx.BatchNorm(8, rngs=seeds), nnx.relu)
block.eval()
image = eqx.Sequential([eqx.Conv2d(3, 8, 3, key=key), eqx.Lambda(jax.nn.relu), eqx.MaxPool2d(2, 2)])
perceptron, cell = eqx.MLP(8, 3, 16, 2, key=key), eqx.GRUCell(8, 6, key=key)
def recurrent(rows):
    return jax.lax.scan(lambda state, row: (cell(row, state), None), jnp.zeros(6), rows)[0]
def total(x):
    return jax.lax.scan(lambda s, row: (jnp.tanh(s + row), s), jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))[0]
"""
AXES = 'dimension_numbers=("NHWC", "HWIO", "NHWC")'
Sizes = dict[str, tuple[int, ...]]
FUNCTIONS: dict[str, tuple[tuple[int, ...], str, Sizes]] = {
    "perceptron": ((8,), 'jax.nn.gelu(x @ p["first"]) @ p["second"]', {"first": (8, 16), "second": (16, 3)}),
    "convolution": (
        (12, 12, 3),
        f'{{"scores": jax.lax.conv_general_dilated(x, p["k"], (1, 1), "SAME", {AXES}).mean((1, 2)) @ p["head"]}}',
        {"k": (3, 3, 3, 8), "head": (8, 4)},
    ),
    "softmax": ((8,), "jax.nn.softmax(x), jax.nn.log_softmax(x)", {}),
    "normalized": ((8,), "(x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)", {}),
    "attention": ((6, 8), 'jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", x, x)), x)', {}),
    "scan": ((5, 8), "total(x)", {}),
    "mapped": ((8,), "jax.vmap(lambda row: jnp.sort(row)[-3:])(x)", {}),
    "chosen": ((8,), "jnp.where(x > 0, jnp.log1p(jnp.abs(x)), -jnp.expm1(x)).clip(-1, 1)", {}),
    "embedded": ((8,), "jnp.take(p['t'], x.astype(jnp.int32).clip(0, 9), axis=0).sum(1)", {"t": (10, 4)}),
    "linen_dense": ((8,), "dense(x)", {}),
    "linen_images": ((12, 12, 3), "half(x).mean((1, 2))", {}),
    "linen_encoder": ((6, 16), "linen.gelu(x + attend(layer(x)))", {}),
    "nnx_images": ((12, 12, 3), "block(x).mean((1, 2))", {}),
    "equinox_perceptron": ((8,), "jax.vmap(perceptron)(x)", {}),
    "equinox_image": ((3, 12, 12), "jax.vmap(image)(x)", {}),
    "equinox_recurrent": ((5, 8), "jax.vmap(recurrent)(x)", {}),
    "remainder": ((8,), "x % 2", {}),
    "fourier": ((8,), "jnp.abs(jnp.fft.rfft(x))", {}),
}
"""By name: the shape of a sample, what is computed of `x` and the parameters `p`, and the parameters' shapes."""


def functions() -> dict[str, Callable[[Path], ZooModel]]:
    """Return the models of `FUNCTIONS`; jax2onnx does not convert the last one."""
    return {f"jax_{name}": partial(_jax, name) for name in FUNCTIONS}


def _jax(name: str, folder: Path) -> ZooModel:
    import jax

    shape, body, sizes = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    code = f"{HEAD}def {name}({'p, ' if sizes else ''}x):\n    return {body}\n"
    (folder / "zoo_nets.py").write_text(code)
    arrays = {key: rng.standard_normal(size).astype(np.float32) / 3 for key, size in sizes.items()}
    np.savez(folder / "parameters.npz", **arrays)
    module: dict[str, Any] = {}
    exec(code, module)
    words = ("--parameters", str(folder / "parameters.npz")) if sizes else ()
    call = partial(module[name], arrays) if sizes else module[name]
    outputs = lambda samples: jax.tree.leaves(call(samples["x"]))  # noqa: E731
    made = with_samples(folder / f"zoo_nets.py:{name}", floats(*shape), outputs, words=words)
    refusal = "jax2onnx cannot convert" if name == "fourier" else ""
    return ZooModel(made.source, made.seen, made.unseen, made.expected, made.words, refusal)
