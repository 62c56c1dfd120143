"""Weights that were trained elsewhere: read without running code, and compared with the network that takes them."""

import pickle
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gauntlet.core.errors import StageError

if TYPE_CHECKING:
    import torch

GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
WAY_OUT = "in the program that made it, torch.save(network.state_dict(), 'weights.pt')"
MAX_NAMES = 5


def read_weights(path: Path, key: str | None = None) -> "dict[str, torch.Tensor]":
    """Read a state dict: a `.safetensors` file, or one that `torch.save(network.state_dict(), ...)` wrote.

    Args:
        path: the file.
        key: where in the file the state dict is, when the file holds more than that.

    Raises:
        StageError: when it cannot be read, holds anything but tensors and plain values, or no state dict.
    """
    if not path.is_file():
        raise StageError(f"train.weights: {path}: no such file")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    contents = _pickled(path)
    if key is not None:
        if not isinstance(contents, dict) or key not in contents:
            raise StageError(f"train.weights_key: {path} has no {key!r}; it has {_names(contents)}")
        contents = contents[key]
    if not isinstance(contents, dict) or not contents or not _all_tensors(contents):
        raise StageError(
            f"train.weights: {path}: no state dict (tensors by name) but {_names(contents)}; "
            "where it is under one of these names, write that one as train.weights_key"
        )
    found: dict[str, torch.Tensor] = contents
    return found


def put_weights(network: "torch.nn.Module", weights: "dict[str, torch.Tensor]", path: Path) -> None:
    """Give the network the weights.

    Raises:
        StageError: when a weight is missing, unexpected, or has another shape, with all their names.
    """
    wanted = network.state_dict()
    shapes = [
        f"{name} {list(weights[name].shape)} for {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    faults = {
        "missing": [name for name in wanted if name not in weights],
        "unexpected": [name for name in weights if name not in wanted],
        "of another shape": shapes,
    }
    told = [f"{kind}: {_few(names)}" for kind, names in faults.items() if names]
    if told:
        prefix = _prefix(set(wanted), set(weights))
        hint = f". Every name in the file begins with '{prefix}'; save it without that" if prefix else ""
        raise StageError(f"train.weights: {path} does not fit the network: {'; '.join(told)}{hint}")
    if not hasattr(weights, "_metadata"):  # the versions of the layers, which a safetensors file does not have
        state = network.state_dict()
        state.update(weights)
        weights = state
    network.load_state_dict(weights)


def _safetensors(path: Path) -> "dict[str, torch.Tensor]":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise StageError(f"train.weights: {path}: not a safetensors file ({error})") from error
    return found


def _pickled(path: Path) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*looks like a TorchScript archive.*")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = GLOBAL.search(str(error))
        what = f" ({found[1]})" if found else ""
        raise StageError(
            f"train.weights: {path} holds more than tensors{what}, such as a whole pickled network. Reading that runs "
            f"code out of the file, so it is refused. Way out: {WAY_OUT}"
        ) from error
    except Exception as error:  # a broken archive ends in many types
        script = "TorchScript archive" in str(error)
        what = "a TorchScript program" if script else f"not readable as a state dict ({type(error).__name__}: {error})"
        raise StageError(f"train.weights: {path}: {what}. Way out: {WAY_OUT}") from error


def _all_tensors(contents: dict[Any, Any]) -> bool:
    import torch

    return all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in contents.items())


def _names(contents: Any) -> str:
    return _few([str(name) for name in contents]) if isinstance(contents, dict) else type(contents).__name__


def _few(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _prefix(wanted: set[str], found: set[str]) -> str:
    """Return what stands before every name in the file, when the names would fit without it: `module.`, mostly."""
    first = min(found, default="")
    for place, letter in enumerate(first):
        prefix = first[: place + 1]
        if letter == "." and {f"{prefix}{name}" for name in wanted} == found:
            return prefix
    return ""
