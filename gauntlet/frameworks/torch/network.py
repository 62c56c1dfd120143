"""PyTorch models: how one is built, one file that describes itself, and what a network answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.frameworks.torch.network_spec import NetworkSpec

if TYPE_CHECKING:
    import torch


EXAMPLES = 2  # exporters that are given one sample take the batch for a constant


def save_network(path: Path, recipe: NetworkSpec, network: "torch.nn.Module", example: NamedArrays) -> None:
    """Write the weights with what is needed to build the network again, and to call it.

    Args:
        path: where to write.
        recipe: how the network is built.
        network: whose weights are written.
        example: a few samples of every input, in the order of the network's arguments, each of shape (n, ...).
    """
    import torch

    samples = {name: tensor(np.resize(array, (EXAMPLES, *array.shape[1:]))) for name, array in example.items()}
    torch.save({"recipe": recipe.model_dump_json(), "example": samples, "state": network.state_dict()}, path)


def load_network(path: Path) -> tuple["torch.nn.Module", dict[str, "torch.Tensor"]]:
    """Return the trained network, in evaluation mode, and its example. Only tensors and plain values are read."""
    import torch

    contents = torch.load(path, map_location="cpu", weights_only=True)
    network = _recipe(contents).build()
    network.load_state_dict(contents["state"])
    return network.eval(), contents["example"]


def recipe_of(path: Path) -> NetworkSpec:
    """Return how the network in a file is built."""
    import torch

    return _recipe(torch.load(path, map_location="cpu", weights_only=True))


def _recipe(contents: Mapping[str, str]) -> NetworkSpec:
    recipe: NetworkSpec = TypeAdapter(NetworkSpec).validate_json(contents["recipe"])
    return recipe


def tensor(array: Array) -> "torch.Tensor":
    """Return the samples as a tensor; floats become float32."""
    import torch

    kind = np.dtype(np.float32) if array.dtype.kind == "f" else array.dtype
    return torch.from_numpy(np.ascontiguousarray(array, dtype=kind))


def ordered_inputs(inputs: NamedArrays, signature: Signature) -> list[Array]:
    """Return samples in the order of the network's arguments, and in the types that it takes."""
    found = [(inputs[spec.name], spec.dtype) for spec in signature.inputs]
    return [array.astype(np.float32, copy=False) if dtype == "float32" else array for array, dtype in found]


def named_outputs(answer: object) -> dict[str, "torch.Tensor"]:
    """Return what a network returned as tensors by name: a mapping's keys, or `output_<place>` in a sequence.

    One tensor alone is called `output`. What is no tensor has no name.
    """
    import torch

    if isinstance(answer, torch.Tensor):
        return {"output": answer}
    named: Mapping[str, object] = {}
    if isinstance(answer, Mapping):
        named = answer
    elif isinstance(answer, Sequence):
        named = {f"output_{place}": value for place, value in enumerate(answer)}
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


def run_network(network: "torch.nn.Module", inputs: Sequence[Array], batch_size: int = 64) -> list[Array]:
    """Return the outputs in their order, each of shape (n, ...), in evaluation mode."""
    import torch

    network.eval()
    parts: list[list[torch.Tensor]] = []
    with torch.inference_mode():
        for start in range(0, len(inputs[0]), batch_size):
            answer = network(*(tensor(array[start : start + batch_size]) for array in inputs))
            parts.append([*named_outputs(answer).values()])
    return [torch.cat(values).numpy() for values in zip(*parts, strict=True)]


def predict(network: "torch.nn.Module", inputs: Array, batch_size: int = 64) -> npt.NDArray[np.float32]:
    """Return the one output of a classifier for pictures of any type, shape (n, classes), in evaluation mode."""
    return run_network(network, [inputs.astype(np.float32, copy=False)], batch_size)[0].astype(np.float32, copy=False)
