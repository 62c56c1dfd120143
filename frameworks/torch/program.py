"""PyTorch programs, which hold their network: files of `torch.export.save` and of `torch.jit.save`."""

import logging
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frameworks.arguments import Arguments
from frameworks.session import LoadedModel
from frameworks.torch.network import named_outputs, require_whole
from frameworks.trust import untrusted_code
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.signature import TensorSpec

if TYPE_CHECKING:
    import torch

EXPORTED = ".pt2"
SCRIPTED = ".torchscript"
MIN_OPEN_BATCH = 2
"""PyTorch notes as the least length of an open axis that may be 1 as well."""
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
            require_whole(path)
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
    _require_numpy_types(program, path)
    declared: tuple[TensorSpec, ...] = ()
    narrowed, max_batch = {"float64": "float32"}, None
    module: torch.nn.Module
    if isinstance(program, torch.export.ExportedProgram):
        _require_tensor_outputs(program, path)
        declared = _exported_inputs(program, path)
        module, arguments = _of_tensors(program), Arguments(tuple(spec.name for spec in declared))
        max_batch = _max_batch(program, path)
    else:
        module, arguments = program, _scripted_inputs(program, path)
        types = {_numpy_type(weight.dtype) for weight in program.parameters() if weight.is_floating_point()}
        narrowed = dict.fromkeys(("float16", "float32", "float64"), types.pop()) if len(types) == 1 else narrowed

    def call(feed: NamedArrays) -> NamedArrays:
        tensors = [torch.from_numpy(np.asarray(array, order="C")) for array in feed.values()]
        if max_batch is None:
            return outputs_for(tensors)
        starts = range(0, len(tensors[0]), max_batch)
        parts = [outputs_for([tensor[start : start + max_batch] for tensor in tensors]) for start in starts]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def outputs_for(tensors: "list[torch.Tensor]") -> NamedArrays:
        with torch.inference_mode():
            result = module(*tensors)
        outputs = {name: value.detach().numpy() for name, value in named_outputs(result).items()}
        if not outputs:
            raise StageError(f"{path}: it returns {type(result).__name__} without a tensor in it")
        return outputs

    return LoadedModel(
        framework=f"torch {torch.__version__}",
        architecture=path.stem,
        parameters=sum(parameter.numel() for parameter in program.parameters()),
        call=call,
        module=module,
        arguments=arguments,
        declared=declared,
        narrowed=narrowed,
    )


def _of_tensors(program: "torch.export.ExportedProgram") -> "torch.nn.Module":
    """Return a program as a module that takes its tensors in the order of its inputs.

    In the program, they may be keyword arguments, or stand in dictionaries and sequences, beside constants.
    """
    import torch
    from torch.utils import _pytree

    module, tree = program.module(), program.call_spec.in_spec
    leaves, names = program.graph_signature.user_inputs, [name for name, _ in _tensor_inputs(program)]

    class OfTensors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.program = module

        def forward(self, *tensors: Any) -> Any:
            values = dict(zip(names, tensors, strict=True))
            positional, keywords = _pytree.tree_unflatten([values.get(leaf, leaf) for leaf in leaves], tree)
            return self.program(*positional, **keywords)

    are_plain = tree == _pytree.tree_structure((tuple(names), {})) and len(names) == len(leaves)
    return module if are_plain else OfTensors()


def _max_batch(program: "torch.export.ExportedProgram", path: Path) -> int | None:
    """Return the limit of an open batch, or None; raise StageError where one sample is too few."""
    shapes = [tensor.shape for _, tensor in _tensor_inputs(program)]
    batch = next((str(shape[0]) for shape in shapes if len(shape) and not isinstance(shape[0], int)), None)
    limits = {str(symbol): limit for symbol, limit in program.range_constraints.items()}
    if (limit := limits.get(str(batch))) is None:
        return None
    if limit.lower > MIN_OPEN_BATCH:
        raise StageError(
            f"{path}: it takes no less than {limit.lower} samples at once. Fix: export it with Dim('batch') without min"
        )
    return int(limit.upper) if limit.upper.is_Integer else None


def _require_numpy_types(program: "torch.export.ExportedProgram | torch.jit.ScriptModule", path: Path) -> None:
    """Raise StageError where a program has weights that neither NumPy nor ONNX Runtime computes with."""
    import torch

    state = program.state_dict if isinstance(program, torch.export.ExportedProgram) else program.state_dict()
    if name := next((name for name, weight in state.items() if weight.dtype == torch.bfloat16), None):
        raise StageError(
            f"{path}: its weight {name} is bfloat16, which ONNX Runtime does not compute with on a processor. Fix: "
            "call float() on the network, and cast nothing to bfloat16 in it, then save it again"
        )


def _require_tensor_outputs(program: "torch.export.ExportedProgram", path: Path) -> None:
    """Raise StageError where a program also returns numbers, which the exporter cannot write; None is left out."""
    from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument

    returned = [spec.arg for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    for place, value in enumerate(returned):
        is_none = isinstance(value, ConstantArgument) and value.value is None
        if not isinstance(value, TensorArgument) and not is_none:
            raise StageError(f"{path}: its output {place} is a number. Fix: return tensors alone, and save it again")


def _exported_inputs(program: "torch.export.ExportedProgram", path: Path) -> tuple[TensorSpec, ...]:
    """Return the inputs as the program was captured; a symbol is an open axis, and the first one is the batch."""
    specs = []
    for name, tensor in _tensor_inputs(program):
        dtype = _numpy_type(tensor.dtype)
        if dtype == "bfloat16":
            raise StageError(f"{path}: its input {name!r} is bfloat16. Fix: take float32, and cast it in the network")
        shape: tuple[Any, ...] = tensor.shape  # of numbers and symbols
        specs.append((name, dtype, [axis if isinstance(axis, int) else str(axis) for axis in shape]))
    if not specs:
        raise StageError(f"{path}: none of its inputs is a tensor")
    batch = next((axes[0] for _, _, axes in specs if axes and isinstance(axes[0], str)), None)
    return tuple(
        TensorSpec(name=name, dtype=dtype, shape=tuple("batch" if axis == batch else axis for axis in axes))
        for name, dtype, axes in specs
    )


def _tensor_inputs(program: "torch.export.ExportedProgram") -> list[tuple[str, "torch.Tensor"]]:
    """Return the inputs that are tensors, with the shapes and types that they were captured with."""
    import torch

    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return [(name, tensor) for name in names if isinstance(tensor := values.get(name), torch.Tensor)]


def _scripted_inputs(program: "torch.jit.ScriptModule", path: Path) -> Arguments:
    """Return the arguments, of which those with a default are optional; raise StageError where another is no tensor."""
    method: Any = program.forward
    arguments = method.schema.arguments[1:]
    required = [each for each in arguments if not each.has_default_value()]
    other = [f"{each.name}: {each.type}" for each in required if str(each.type) != "Tensor"]
    if other:
        raise StageError(
            f"{path}: it takes {other[0]}, which is no tensor. Fix: wrap it so that it takes tensors alone"
        )
    optional = tuple(each.name for each in arguments if each.has_default_value())
    return Arguments(tuple(each.name for each in required), optional)


def with_defaults(program: Any, arguments: "tuple[torch.Tensor, ...]") -> Any:
    """Return a TorchScript program whose only arguments are these; the others have their defaults.

    The exporter takes no program with more arguments than it is given, writes optional inputs as such, and knows
    neither dictionaries nor lists of outputs.
    """
    import torch

    own, returned = program.forward.schema.arguments[1:], str(program.forward.schema.returns[0].type)
    is_plain = "Dict" not in returned and "List" not in returned
    if is_plain and len(own) == len(arguments) and all(str(each.type) == "Tensor" for each in own):
        return program

    class WithDefaults(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.program = program

        def forward(self, *tensors: Any) -> Any:
            result = self.program(*tensors)
            return result if is_plain else tuple(named_outputs(result).values())

    return torch.jit.trace(WithDefaults().eval(), arguments, check_trace=False)  # type: ignore[no-untyped-call]


def _numpy_type(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")
