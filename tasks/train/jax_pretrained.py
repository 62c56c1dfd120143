"""A JAX function of the user's, and its parameters."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Store
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.user_code import FunctionName, UserCode, code_files
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.jax import function as jax_function
from gauntlet.frameworks.session import LoadedModel
from tasks.train.facts import TrainFacts
from tasks.train.loaded_model import report_loaded


class JaxModel(Frozen):
    """Take a function. It is called with its parameters, if any, and the data's inputs in their order and layout."""

    kind: Literal["jax-model"] = "jax-model"
    function: FunctionName = Field(description="module:function, which returns an array, or several by order or name")
    code_folder: Path = Field(Path(), description="contains the module; what it imports from there is stored with it")
    parameters: Path | None = Field(
        None,
        description="its first argument, a nested dictionary of arrays: an .npz file with names such as dense/kernel, "
        "or a .msgpack file of flax.serialization; without, the function takes the inputs alone",
    )
    primary_output: str | None = Field(None, description="output that names the class; default: the first with scores")
    seed: int = Field(0, ge=0, description="of the random inputs")

    packages: ClassVar[dict[str, str]] = {"jax": "jax"}

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

        model = self.load_model(workspace.store)
        return report_loaded(
            model, store_as, splits, signature, workspace, seed=self.seed, primary_output=self.primary_output
        )

    def _read(self) -> tuple[UserCode, NamedArrays | None]:
        parameters = None if self.parameters is None else jax_function.read_parameters(self.parameters)
        return UserCode.read(self.code_folder, self.function), parameters
