"""Pretrained weights: read without running code, and compared with the network that takes them."""

import copy
import pickle
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworks.torch.freezing import head_of
from frameworks.torch.network import require_whole
from gauntlet.core.errors import StageError, listed

if TYPE_CHECKING:
    import torch

GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
FIX = "in the program that made it, torch.save(network.state_dict(), 'weights.pt')"
KEYS = ("state_dict", "model_state_dict", "model", "ema", "state_dict_ema", "model_ema", "net", "network", "weights")
"""Where checkpoints usually have a state dict."""
MAX_NAMED = 5
OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")
TWO_HEADS = ("torchvision.models.googlenet", "torchvision.models.inception")
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")


def read_weights(path: Path, key: str | None = None) -> "dict[str, torch.Tensor]":
    """Read a state dict: a `.safetensors` file, or one that `torch.save(network.state_dict(), ...)` wrote.

    `key` is the place of the state dict in a larger checkpoint, by default the only one of `KEYS` there. Raise
    StageError if the file cannot be read, holds anything but tensors and plain values, or has no state dict.
    """
    import torch

    if not path.is_file():
        raise StageError(f"train.weights: {path}: no such file")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    contents = _pickled(path)
    if key is not None:
        if not isinstance(contents, dict) or key not in contents:
            raise StageError(f"train.weights_key: {path} has no {key!r}; it has {_names(contents)}")
        contents = contents[key]
    elif isinstance(contents, dict) and not _is_state(contents):
        states = [contents[name] for name in KEYS if _is_state(contents.get(name))]
        contents = states[0] if len(states) == 1 else contents
    state: dict[str, torch.Tensor] = contents if isinstance(contents, dict) else {}
    if not _is_state(state):
        raise StageError(
            f"train.weights: {path}: no state dict (tensors by name) but {_names(contents)}. "
            "Fix: if it is under one of these names, set train.weights_key"
        )
    return state


def _is_state(contents: Any) -> bool:
    """Return whether an object is a state dict: tensors by name."""
    import torch

    tensors = isinstance(contents, dict) and all(isinstance(value, torch.Tensor) for value in contents.values())
    return bool(contents) and tensors and all(isinstance(name, str) for name in contents)


def put_weights(network: "torch.nn.Module", weights: "dict[str, torch.Tensor]", path: Path | str) -> None:
    """Load the weights; raise StageError with the names of missing, unexpected or differently shaped weights.

    Names that PyTorch or torchvision would complete, change or leave out are no problem: see `_fitted`.
    """
    from torch.nn.parameter import is_lazy

    state, weights = network.state_dict(), _fitted(network, weights)
    problems = {
        "missing": [name for name in state if name not in weights],
        "unexpected": [name for name in weights if name not in state],
        "of another shape": [
            f"{name} {list(weights[name].shape)} for {list(tensor.shape)}"
            for name, tensor in state.items()
            if name in weights and not is_lazy(tensor) and weights[name].shape != tensor.shape
        ],
    }
    if faults := [f"{problem}: {listed(names, MAX_NAMED)}" for problem, names in problems.items() if names]:
        raise StageError(f"train.weights: {path} does not fit the network: {'; '.join(faults)}")
    if not hasattr(weights, "_metadata"):  # the layers' versions, which a safetensors file does not have
        state.update(weights)
        weights = state
    network.load_state_dict(weights)


def _fitted(network: "torch.nn.Module", weights: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return the weights under the network's names.

    Tied weights are stored once in a safetensors file. Batch norms of PyTorch before 0.4.1 do not count their batches.
    torchvision's published files hold old names of DenseNet's layers, and heads of GoogLeNet and Inception that only
    their training uses.
    """
    from torch.nn.parameter import is_lazy

    state, fitted = network.state_dict(), _unwrapped(network, weights)
    two_heads = type(network).__module__ in TWO_HEADS
    for name in [name for name in fitted if name not in state]:
        if (current := OLD_DENSENET.sub(r"\1\2", name)) in state:
            fitted[current] = fitted.pop(name)
        elif two_heads and name.startswith(AUXILIARY):
            del fitted[name]
    made = {name: tensor for name, tensor in state.items() if not is_lazy(tensor)}  # a lazy layer's have no shape yet
    memory = {name: (tensor.data_ptr(), tensor.shape, tensor.stride()) for name, tensor in made.items()}
    stored = {memory[name]: fitted[name] for name in made if name in fitted and made[name].numel()}
    for name in [name for name in state if name not in fitted]:
        if memory.get(name) in stored:
            fitted[name] = stored[memory[name]]
        elif name.endswith("num_batches_tracked"):
            fitted[name] = state[name]
    return fitted


def _unwrapped(network: "torch.nn.Module", weights: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return weights without the first part of all names, where only then some are the network's.

    `torch.compile` puts `_orig_mod.` in front, `DataParallel` and `AveragedModel` `module.`, and Lightning the name of
    an attribute.
    """
    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

    state, plain = network.state_dict(), copy.copy(weights)  # with the versions of the layers
    for name in [name for name in plain if name.endswith("n_averaged") and name not in state]:
        del plain[name]
    while not any(name in state for name in plain) and len({name.partition(".")[0] for name in plain}) == 1:
        if not all("." in name for name in plain):
            break
        consume_prefix_in_state_dict_if_present(plain, f"{next(iter(plain)).partition('.')[0]}.")
    return plain if any(name in state for name in plain) else copy.copy(weights)


def require_float32(network: "torch.nn.Module", name: str) -> None:
    """Raise StageError where a network has weights of another float type: samples are float32."""
    import torch

    for place, tensor in network.state_dict().items():
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise StageError(
                f"train.factory: {name} builds a network with weights of {dtype} ({place}); expected float32. Fix: "
                "build it without .half(), .bfloat16() or .double(); the weights in the file are converted"
            )


def without_other_head(
    network: "torch.nn.Module", weights: "dict[str, torch.Tensor]"
) -> "tuple[dict[str, torch.Tensor], tuple[str, ...]]":
    """Return the weights with the network's own head in place of one of another number of classes, and its names.

    Without such a head, the weights are as they were, and there are no names.
    """
    state, head, weights = network.state_dict(), head_of(network), _unwrapped(network, weights)
    names = tuple(f"{head}.{name}" if head else name for name, _ in network.get_submodule(head).named_parameters())

    def other_classes(name: str) -> bool:
        own, other = state[name].shape, weights[name].shape if name in weights else state[name].shape
        return bool(own[1:] == other[1:] and own != other)

    if not any(map(other_classes, names)):
        return weights, ()
    replaced = copy.copy(weights)  # with the versions of the layers
    replaced.update({name: state[name] for name in names})
    return replaced, names


def _safetensors(path: Path) -> "dict[str, torch.Tensor]":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise StageError(f"train.weights: {path}: not a safetensors file ({error})") from error
    return state


def _pickled(path: Path) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*looks like a TorchScript archive.*")
            require_whole(path)
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        match = GLOBAL.search(str(error))
        name = f" ({match[1]})" if match else ""
        raise StageError(
            f"train.weights: {path} holds more than tensors{name}, such as a whole pickled network; "
            f"refused, because reading it runs code from the file. Fix: {FIX}"
        ) from error
    except Exception as error:  # a broken archive raises many types
        script = "TorchScript archive" in str(error)
        what = "a TorchScript program" if script else f"not readable as a state dict ({type(error).__name__}: {error})"
        raise StageError(f"train.weights: {path}: {what}. Fix: {FIX}") from error


def _names(contents: Any) -> str:
    return listed([*map(str, contents)], MAX_NAMED) if isinstance(contents, dict) else type(contents).__name__
