"""PyTorch programs, which hold their network: files of `torch.export.save` and of `torch.jit.save`."""

import logging
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.signature import TensorSpec
from gauntlet.frameworks.session import LoadedModel
from gauntlet.frameworks.torch.network import named_outputs
from gauntlet.frameworks.trust import untrusted_code

if TYPE_CHECKING:
    import torch

EXPORTED = ".pt2"
SCRIPTED = ".torchscript"
UNSAFE = "PyTorch unpickles what such a file holds, and that may run any code"


def is_scripted(path: Path) -> bool:
    """Return whether a file is a TorchScript archive, by the names in it; nothing is loaded."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
    return "constants.pkl" in names and any(name.startswith("code/") for name in names)


def read_program(
    path: Path, suffix: str, *, trust: bool = False
) -> "torch.export.ExportedProgram | torch.jit.ScriptModule":
    """Return the program in a file, on the CPU; raise StageError unless it is trusted and can be read.

    `suffix` says how to read it, whatever the file is called: as `EXPORTED` or `SCRIPTED`.
    """
    import torch

    if not trust:
        raise untrusted_code(path, UNSAFE)
    exported = suffix == EXPORTED
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it logs a traceback before it raises
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if exported:
                return torch.export.load(path)
            load: Callable[..., torch.jit.ScriptModule] = torch.jit.load
            return load(path, map_location="cpu").eval()
    except Exception as error:  # a damaged file raises many types
        kind = "an ExportedProgram (torch.export.save)" if exported else "a TorchScript program (torch.jit.save)"
        raise StageError(f"{path}: not {kind} that torch {torch.__version__} can read: {one_line(error)}") from error
    finally:
        log.setLevel(level)


def load_program(path: Path, suffix: str, *, trust: bool = False) -> LoadedModel:
    """Return the program in a file as a model; raise StageError as `read_program`, or where an input is no tensor."""
    import torch

    program = read_program(path, suffix, trust=trust)
    declared: tuple[TensorSpec, ...] = ()
    module: torch.nn.Module
    if isinstance(program, torch.export.ExportedProgram):
        declared = _exported_inputs(program, path)
        module, names = program.module(), tuple(spec.name for spec in declared)
    else:
        module, names = program, _scripted_inputs(program, path)

    def call(feed: NamedArrays) -> NamedArrays:
        with torch.inference_mode():
            result = module(*(torch.from_numpy(np.ascontiguousarray(array)) for array in feed.values()))
        outputs = {name: value.numpy() for name, value in named_outputs(result).items()}
        if not outputs:
            raise StageError(f"{path}: it returns {type(result).__name__} without a tensor in it")
        return outputs

    return LoadedModel(
        framework=f"torch {torch.__version__}",
        architecture=path.stem,
        parameters=sum(parameter.numel() for parameter in program.parameters()),
        call=call,
        module=module,
        names=names,
        declared=declared,
    )


def _exported_inputs(program: "torch.export.ExportedProgram", path: Path) -> tuple[TensorSpec, ...]:
    """Return the inputs as the program was captured; a symbol is an open axis, and the first one is the batch."""
    import torch

    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = []
    for name in program.graph_signature.user_inputs:
        value = nodes[name].meta.get("val") if isinstance(name, str) and name in nodes else None
        if not isinstance(value, torch.Tensor):
            raise StageError(f"{path}: its input {name!r} is no tensor. Fix: export a module that takes tensors alone")
        specs.append((str(name), _numpy_type(value.dtype), [_axis(axis) for axis in value.shape]))
    batch = next((axes[0] for _, _, axes in specs if axes and isinstance(axes[0], str)), None)
    return tuple(
        TensorSpec(name=name, dtype=dtype, shape=tuple("batch" if axis == batch else axis for axis in axes))
        for name, dtype, axes in specs
    )


def _axis(axis: Any) -> int | str:
    return axis if isinstance(axis, int) else str(axis)


def _scripted_inputs(program: "torch.jit.ScriptModule", path: Path) -> tuple[str, ...]:
    """Return the names of the arguments without a default; raise StageError where one is no tensor."""
    method: Any = program.forward
    arguments = [each for each in method.schema.arguments[1:] if not each.has_default_value()]
    other = [f"{each.name}: {each.type}" for each in arguments if str(each.type) != "Tensor"]
    if other:
        raise StageError(
            f"{path}: it takes {other[0]}, which is no tensor. Fix: wrap it so that it takes tensors alone"
        )
    return tuple(each.name for each in arguments)


def _numpy_type(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")
