"""PyTorch models: save, load and run a network."""

import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from frameworks.torch.network_spec import NetworkSpec, code_of
from frameworks.trust import untrusted_code
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature

if TYPE_CHECKING:
    import torch

EXAMPLES = 2  # with one example, exporters treat the batch as a constant


def save_network(path: Path, spec: NetworkSpec, network: "torch.nn.Module", example: NamedArrays) -> None:
    """Write the weights, how to build the network, and how to call it.

    `example` is a few samples of every input, in the order of the network's arguments, each of shape (n, ...).
    """
    import torch

    samples = {name: tensor(np.resize(array, (EXAMPLES, *array.shape[1:]))) for name, array in example.items()}
    torch.save({"recipe": spec.model_dump_json(), "example": samples, "state": network.state_dict()}, path)


def load_network(path: Path, *, trust: bool = False) -> tuple["torch.nn.Module", dict[str, "torch.Tensor"]]:
    """Return the trained network in evaluation mode and its example; nothing is ever unpickled but tensors.

    The file may hold the source of the function that builds the network. That runs only with `trust`, for a file of
    this home's store or one that the user trusts; otherwise raise StageError.
    """
    contents = _tensors(path)
    spec = _spec(contents)
    code = code_of(spec)
    if code is not None and not trust:
        raise untrusted_code(path.name, f"it builds its network with code of its own, {code.name}")
    network = spec.build()
    network.load_state_dict(contents["state"])
    return network.eval(), contents["example"]


def require_whole(path: Path) -> None:
    """Raise BadZipFile where a part of an archive does not fit its checksum, which PyTorch does not look at."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
        if part and not part.endswith("data.pkl"):  # PyTorch can be told to write none, which is the first
            raise zipfile.BadZipFile(f"damaged: {part} does not fit its checksum")


def recipe_of(path: Path) -> NetworkSpec:
    """Return how the network in a file is built."""
    return _spec(_tensors(path))


def _tensors(path: Path) -> dict[str, Any]:
    """Read tensors and plain values; raise StageError where the file holds anything else, which would run code."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*looks like a TorchScript archive.*")
            contents: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "TorchScript" not in str(error):
            raise
        raise StageError(
            f"{path.name}: it holds more than tensors, and reading that would run code from the file; refused. "
            "Fix: use the trained model of a run, or export the network to ONNX and use that file"
        ) from error
    return contents


def _spec(contents: Mapping[str, str]) -> NetworkSpec:
    spec: NetworkSpec = TypeAdapter(NetworkSpec).validate_json(contents["recipe"])
    return spec


def tensor(array: Array) -> "torch.Tensor":
    """Return the samples as a tensor; floats become float32."""
    import torch

    dtype = np.dtype(np.float32) if array.dtype.kind == "f" else array.dtype
    return torch.from_numpy(np.asarray(array, dtype, order="C"))


def ordered_inputs(inputs: NamedArrays, signature: Signature) -> list[Array]:
    """Return samples in the order and the types of the network's arguments."""
    arrays = [(inputs[spec.name], spec.dtype) for spec in signature.inputs]
    return [array.astype(np.float32, copy=False) if dtype == "float32" else array for array, dtype in arrays]


def named_outputs(result: object) -> dict[str, "torch.Tensor"]:
    """Return the tensors in a network's result by name: a mapping's keys, or `output_<index>` in a sequence.

    A single tensor is called `output`. Nested ones are flattened: `(a, (b, c))` has the names `output_0`, `output_1_0`
    and `output_1_1`, `{"state": (b, c)}` has `state_0` and `state_1`. Raise StageError if two names are equal, or a
    type is one that ONNX Runtime does not return.
    """
    import torch

    outputs: dict[str, torch.Tensor] = {}
    for name, value in _named_tensors(result, ""):
        if name in outputs:
            raise StageError(f"the network returns two outputs with the name {name!r}. Fix: rename one of its keys")
        if value.is_complex() or value.dtype == torch.bfloat16:
            fix = "torch.view_as_real(x)" if value.is_complex() else "x.float()"
            raise StageError(
                f"its output {name!r} is {value.dtype}, which ONNX Runtime cannot return. Fix: return {fix}"
            )
        outputs[name] = value
    return outputs


def _named_tensors(result: object, name: str) -> Iterator[tuple[str, "torch.Tensor"]]:
    import torch

    if isinstance(result, torch.Tensor):
        yield name or "output", result
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from _named_tensors(value, f"{name}_{key}" if name else str(key))
    elif isinstance(result, Sequence) and not isinstance(result, str):
        for index, value in enumerate(result):
            yield from _named_tensors(value, f"{name or 'output'}_{index}")


def run_network(network: "torch.nn.Module", inputs: Sequence[Array], batch_size: int = 64) -> list[Array]:
    """Return the outputs in order, each of shape (n, ...), in evaluation mode, computed where the network is."""
    import torch

    network.eval()
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    parts: list[list[torch.Tensor]] = []
    with torch.inference_mode():
        for start in range(0, len(inputs[0]), batch_size):
            result = network(*(tensor(array[start : start + batch_size]).to(device) for array in inputs))
            parts.append([*named_outputs(result).values()])
    return [torch.cat(values).cpu().numpy() for values in zip(*parts, strict=True)]


def predict(network: "torch.nn.Module", inputs: Array, batch_size: int = 64) -> npt.NDArray[np.float32]:
    """Return the one output of a classifier for images of any type, shape (n, classes), in evaluation mode."""
    return run_network(network, [inputs.astype(np.float32, copy=False)], batch_size)[0].astype(np.float32, copy=False)
