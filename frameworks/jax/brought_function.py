"""A JAX function of the user's, and its parameters."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from frameworks.jax import function as jax_function
from frameworks.loaded_model import report_loaded
from frameworks.session import LoadedModel
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.user_code import FunctionName, UserCode, code_files
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Splits
from tasks.train.base import Brought
from tasks.train.facts import TrainFacts
from tasks.train.states import StatePairs


class JaxModel(Brought):
    """Take a function of its parameters, if any, and of the data's arrays by name, in the data's layout."""

    kind: Literal["jax-model"] = "jax-model"
    function: FunctionName = Field(description="module:function, which returns an array, or several by order or name")
    code_folder: Path = Field(Path(), description="contains the module; what it imports from there is stored with it")
    parameters: Path | None = Field(
        None,
        description="its first argument: an .npz file with names such as dense/kernel, or a .msgpack file of "
        "flax.serialization",
    )
    primary_output: str | None = Field(None, description="output that names the class; default: the first with scores")
    states: StatePairs = None

    packages: ClassVar[dict[str, str]] = {"jax": "jax"}

    @classmethod
    def values(cls, source: str, parameters: Path | None, *, trust: bool) -> dict[str, Any]:
        """Return the part `train` for `FILE.py:FUNCTION`."""
        if parameters is not None and not parameters.is_file():
            raise ConfigError(f"--parameters {parameters}: no such file")
        path, _, function = source.rpartition(":")
        file = Path(path).resolve()
        part = {"kind": "jax-model", "function": f"{file.stem}:{function}", "code_folder": str(file.parent)}
        return part | ({"parameters": str(parameters.resolve())} if parameters else {})

    @classmethod
    def title(cls, source: str) -> str:
        """Return the names of the file and of the function."""
        path, _, function = source.rpartition(":")
        return f"{Path(path).stem}-{function}"

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read; for a function of an installed package, the file with its version."""
        parameters = (self.parameters,) if self.parameters else ()
        return (*parameters, *code_files(self.code_folder, self.function))

    def load_model(self, store: Store) -> LoadedModel:
        """Return the function as a model; raise StageError if it or its parameters cannot be read."""
        code, parameters = self._read()
        return jax_function.load_function(code, parameters, f"train.function: {self.function}")

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Call the function and record its golden outputs. See `tasks.train.train`."""
        code, parameters = self._read()

        def store_as(inputs: tuple[TensorSpec, ...]) -> Path:
            path = workspace.folder / f"model{jax_function.SUFFIX}"
            spec = jax_function.JaxFunction(code=code, takes_parameters=parameters is not None, inputs=inputs)
            jax_function.save(path, spec, parameters or {})
            return path

        return report_loaded(self, self.load_model(workspace.store), store_as, splits, signature, workspace)

    def _read(self) -> tuple[UserCode, NamedArrays | None]:
        parameters = None if self.parameters is None else jax_function.read_parameters(self.parameters)
        return UserCode.read(self.code_folder, self.function), parameters
