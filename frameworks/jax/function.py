"""A user's JAX function and its parameters: read, save, load and call."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.arguments import Arguments
from frameworks.jax.network import use_cpu
from frameworks.session import LoadedModel
from frameworks.trust import untrusted_code
from gauntlet.core.arrays import NamedArrays, read_arrays
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import TensorSpec
from gauntlet.core.user_code import UserCode

SUFFIX = ".jax"
"""Of a function saved by this project: an `.npz` file of its parameters, and `JaxFunction` as JSON."""
PARAMETERS = (".npz", ".msgpack")
SPEC_KEY = "recipe"
PREFIX = "parameters/"
NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
"""JAX computes in 32 bits unless `jax_enable_x64` is set."""


class JaxFunction(Frozen):
    """A function with its source, whether it takes parameters first, and the inputs that it is exported for."""

    code: UserCode
    takes_parameters: bool
    inputs: tuple[TensorSpec, ...]

    def bind(self, parameters: NamedArrays) -> Callable[..., Any]:
        """Return the function of its inputs alone; `parameters` are as `read_parameters` returns them."""
        use_cpu()
        import jax

        function = self.code.function()
        if not self.takes_parameters:
            return function
        from flax.traverse_util import unflatten_dict

        tree = jax.tree.map(jax.numpy.asarray, unflatten_dict(parameters, sep="/"))  # type: ignore[no-untyped-call]

        def apply(*inputs: Any) -> Any:
            return function(tree, *inputs)

        return apply


def read_parameters(path: Path) -> NamedArrays:
    """Return the arrays of a file by their path in the tree, joined by `/`: `dense/kernel`.

    Read are `.npz` files with such names, and what `flax.serialization` wrote (`.msgpack`). Neither can hold code.
    Raise StageError if the file cannot be read, or holds anything but arrays of NumPy's own types: it cannot store
    bfloat16.
    """
    if path.suffix not in PARAMETERS:
        fix = "Fix: write them with numpy.savez; networks of other frameworks: docs/how-to/bring-a-model.md"
        raise StageError(f"{path}: a JAX function; expected parameters in one of {', '.join(PARAMETERS)}. {fix}")
    try:
        if path.suffix == ".npz":
            arrays = read_arrays(path)
        else:
            from flax.serialization import msgpack_restore
            from flax.traverse_util import flatten_dict

            leaves = flatten_dict(msgpack_restore(path.read_bytes()))  # type: ignore[no-untyped-call]
            arrays = {"/".join(map(str, names)): np.asarray(value) for names, value in leaves.items()}
    except Exception as error:  # a damaged file raises many types
        raise StageError(f"{path}: not a {path.suffix} file of arrays ({one_line(error)})") from error
    if other := next((name for name, array in arrays.items() if array.dtype.kind == "V"), None):
        fix = "Fix: convert all with astype('float32'), then save them again"
        raise StageError(f"{path}: {other!r} is bfloat16, or of another type that NumPy does not have. {fix}")
    return arrays


def load_function(code: UserCode, parameters: NamedArrays | None, label: str) -> LoadedModel:
    """Return a user's function as a model; `label` names it in messages. Raise StageError if it cannot be imported."""
    use_cpu()
    import jax

    spec = JaxFunction(code=code, takes_parameters=parameters is not None, inputs=())
    bound, names = spec.bind(parameters or {}), list[str]()

    @jax.jit
    def compiled(*inputs: Any) -> tuple[Any, ...]:
        outputs = named_outputs(bound(*inputs), label)
        names[:] = outputs  # JAX would sort them
        return tuple(outputs.values())

    def call(feed: NamedArrays) -> NamedArrays:
        values = compiled(*feed.values())
        return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}

    return LoadedModel(
        framework=f"jax {jax.__version__}",
        architecture=code.name,
        parameters=sum(array.size for array in (parameters or {}).values()),
        call=call,
        arguments=Arguments.of(code.function(), skipped=int(spec.takes_parameters)),
        narrowed=NARROWED,
    )


def named_outputs(result: Any, label: str) -> dict[str, Any]:
    """Return the arrays in a function's result by name: a mapping's keys, or `output_<index>` in a sequence.

    A single array is called `output`. Raise StageError for anything else.
    """
    named = {"output": result}
    if isinstance(result, Mapping):
        named = {str(name): value for name, value in result.items()}
    elif isinstance(result, Sequence):
        named = {f"output_{index}": value for index, value in enumerate(result)}
    other = [type(value).__name__ for value in named.values() if not hasattr(value, "shape")]
    if other or not named:
        actual = f"a {type(result).__name__} that holds {other[0]}" if other else "nothing"
        raise StageError(f"{label} returns {actual}; expected an array, or a sequence or mapping of arrays")
    return named


def save(path: Path, spec: JaxFunction, parameters: NamedArrays) -> None:
    """Write the parameters and the spec to one file of plain arrays; equal functions give equal files."""
    arrays = {f"{PREFIX}{name}": array for name, array in parameters.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{SPEC_KEY: np.array(spec.model_dump_json())}, **arrays)


def load(path: Path, *, trust: bool = False) -> tuple[Callable[..., Any], JaxFunction]:
    """Return a saved function of its inputs alone, and its spec; raise StageError unless its code is trusted."""
    try:
        with np.load(path, allow_pickle=False) as file:
            spec = JaxFunction.model_validate_json(str(file[SPEC_KEY]))
            parameters = {name.removeprefix(PREFIX): file[name] for name in file.files if name.startswith(PREFIX)}
    except Exception as error:  # a file of another kind raises many types
        raise StageError(f"{path.name}: not a network saved by this project: {one_line(error)}") from error
    if not trust:
        raise untrusted_code(path.name, f"it holds the code of {spec.code.name}")
    return spec.bind(parameters), spec
