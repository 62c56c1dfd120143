"""Models that TensorFlow runs and nobody here trained: a `.keras` file, or a SavedModel folder."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Split
from gauntlet.frameworks.keras import files
from gauntlet.frameworks.keras.model import CallableModel, from_network, from_saved_model
from gauntlet.frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.frameworks.training import measured, store_golden_and_predictions
from tasks.train.facts import TrainFacts, find_answer
from tasks.train.input_sizes import PRETRAINED_SIZES_HELP, InputSizes, outputs_of, resized_samples, with_dynamic_size

PACKAGES = {"keras": "tensorflow", "tensorflow": "tensorflow"}


class KerasModel(Frozen):
    """Take a `.keras` file as it is. What goes into it is the data, normalised as the file expects it."""

    kind: Literal["keras-model"] = "keras-model"
    model: Path = Field(description="what model.save(...) wrote: .keras, or the older .h5")
    primary_output: str | None = Field(
        None, description="the output that names the class; by default the first with scores"
    )
    input_sizes: InputSizes = Field((), description=PRETRAINED_SIZES_HELP)
    seed: int = Field(0, ge=0, description="of the random inputs")

    packages: ClassVar[dict[str, str]] = PACKAGES

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (self.model,)

    def fit(self, splits: Mapping[str, Split], signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Take the network and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when the file cannot be read, or the data does not fit the network's inputs.
        """
        network = files.load(self.model)
        path = workspace.folder / f"model{self.model.suffix}"
        shutil.copyfile(self.model, path)
        return _taken(self, from_network(network), network.name, path, splits, signature, workspace)


class SavedModelFolder(Frozen):
    """Take one signature of a SavedModel as it is: any TensorFlow model, with its graph, whatever code made it."""

    kind: Literal["saved-model"] = "saved-model"
    model: Path = Field(description="the folder with saved_model.pb")
    signature: str = Field("serving_default", description="which of its functions")
    primary_output: str | None = Field(
        None, description="the output that names the class; by default the first with scores"
    )
    input_sizes: InputSizes = Field((), description=PRETRAINED_SIZES_HELP)
    seed: int = Field(0, ge=0, description="of the random inputs")

    packages: ClassVar[dict[str, str]] = PACKAGES

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return files.files_of(self.model)

    def fit(self, splits: Mapping[str, Split], signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Take the model and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when the folder cannot be read, or the data does not fit the model's inputs.
        """
        path = workspace.folder / f"model{files.SAVED_MODEL}"
        files.pack_saved_model(self.model, path, self.signature)
        model = from_saved_model(self.model, self.signature)
        return _taken(self, model, self.model.resolve().name, path, splits, signature, workspace)


def _taken(
    config: KerasModel | SavedModelFolder,
    model: CallableModel,
    name: str,
    path: Path,
    splits: Mapping[str, Split],
    signature: Signature,
    workspace: Workspace,
) -> Report[TrainFacts]:
    test = measured(splits)
    sizes = resized_samples(test, config.input_sizes, signature)
    signature = with_dynamic_size(signature) if sizes else signature
    names = model.names(signature)
    types = {names[name]: dtype for name, dtype, _ in model.inputs}
    signature = signature.replace(inputs=tuple(spec.replace(dtype=types[spec.name]) for spec in signature.inputs))

    def predict(inputs: NamedArrays) -> NamedArrays:
        return model.predict(inputs, signature)

    # Random numbers may lie outside an embedding's table.
    indices = any(spec.dtype.startswith(("int", "uint")) for spec in signature.inputs)
    golden = record_golden(predict, test, seed=config.seed, sizes=sizes, values_that_occur=indices)
    answer = find_answer(config.primary_output, golden.test_outputs, signature.labels)
    signature = signature.replace(outputs=outputs_of(golden), primary_output=answer)
    facts = TrainFacts(
        framework=f"keras {start_tensorflow().__version__}",
        architecture=name,
        parameters=model.parameters,
        signature=signature,
    )
    artifacts = store_golden_and_predictions(golden, predict, {"test": test}, signature, workspace)
    artifacts["model"] = workspace.store_file(path)
    return Report(stage="train", facts=facts, artifacts=artifacts)
