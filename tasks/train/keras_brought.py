"""Models that TensorFlow runs and nobody here trained: a `.keras` file, or a SavedModel folder."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from tasks.data.dataset import Arrays, Split
from tasks.data.golden import Golden, ask
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.signature import Signature
from tasks.sources.keras import files
from tasks.sources.keras.answers import Model, of_network, of_saved_model
from tasks.sources.keras.start import start
from tasks.sources.learning import keep_answers
from tasks.statistics import classes
from tasks.train.facts import TrainFacts
from tasks.train.sizes import BROUGHT, Sizes, at_other_sizes, outputs_of, with_dynamic_size
from tasks.workspace import Workspace

PACKAGES = {"keras": "tensorflow", "tensorflow": "tensorflow"}


class KerasModel(Frozen):
    """Take a `.keras` file as it is. What goes into it is the data, normalised as the file expects it."""

    kind: Literal["keras-model"] = "keras-model"
    model: Path = Field(description="what model.save(...) wrote: .keras, or the older .h5")
    answer: str | None = Field(None, description="the output that names the class; by default the first with scores")
    sizes: Sizes = Field((), description=BROUGHT)
    seed: int = Field(0, ge=0, description="of the random inputs")

    packages: ClassVar[dict[str, str]] = PACKAGES

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (self.model,)

    def fit(self, splits: Mapping[str, Split], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Take the network and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when the file cannot be read, or the data does not fit the network's inputs.
        """
        network = files.load(self.model)
        path = out.folder / f"model{self.model.suffix}"
        shutil.copyfile(self.model, path)
        return _taken(self, of_network(network), network.name, path, splits, signature, out)


class SavedModelFolder(Frozen):
    """Take one signature of a SavedModel as it is: any TensorFlow model, with its graph, whatever code made it."""

    kind: Literal["saved-model"] = "saved-model"
    model: Path = Field(description="the folder with saved_model.pb")
    signature: str = Field("serving_default", description="which of its functions")
    answer: str | None = Field(None, description="the output that names the class; by default the first with scores")
    sizes: Sizes = Field((), description=BROUGHT)
    seed: int = Field(0, ge=0, description="of the random inputs")

    packages: ClassVar[dict[str, str]] = PACKAGES

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return files.files_of(self.model)

    def fit(self, splits: Mapping[str, Split], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Take the model and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when the folder cannot be read, or the data does not fit the model's inputs.
        """
        path = out.folder / f"model{files.SAVED_MODEL}"
        files.pack(self.model, path, self.signature)
        model = of_saved_model(self.model, self.signature)
        return _taken(self, model, self.model.resolve().name, path, splits, signature, out)


def _taken(
    config: KerasModel | SavedModelFolder,
    model: Model,
    name: str,
    path: Path,
    splits: Mapping[str, Split],
    signature: Signature,
    out: Workspace,
) -> Report[TrainFacts]:
    if "test" not in splits:
        raise StageError(f"the model is measured on the split 'test'; the data has {sorted(splits)}")
    sizes = at_other_sizes(splits["test"], config.sizes, signature)
    signature = with_dynamic_size(signature) if sizes else signature
    names = model.names(signature)
    types = {names[name]: dtype for name, dtype, _ in model.inputs}
    signature = signature.replace(inputs=tuple(spec.replace(dtype=types[spec.name]) for spec in signature.inputs))

    def predict(inputs: Arrays) -> Arrays:
        return model.answer(inputs, signature)

    # Random numbers may lie outside an embedding's table.
    indices = any(spec.dtype.startswith(("int", "uint")) for spec in signature.inputs)
    golden = ask(predict, splits["test"], seed=config.seed, sizes=sizes, values_that_occur=indices)
    signature = _answered(signature, golden, config.answer)
    facts = TrainFacts(
        framework=f"keras {start().__version__}",
        architecture=name,
        parameters=model.parameters,
        best_epoch=0,
        stopped_early=False,
        history=(),
        signature=signature,
    )
    artifacts = keep_answers(golden, predict, {"test": splits["test"]}, signature, out)
    artifacts["model"] = out.keep(path)
    return Report(stage="train", facts=facts, artifacts=artifacts)


def _answered(signature: Signature, golden: Golden, answer: str | None) -> Signature:
    """Return the signature with the outputs, and which of them names the class."""
    found = golden.answers
    if answer is not None and answer not in found:
        raise StageError(f"train.answer: the model has no output {answer!r}; it has {sorted(found)}")
    named = (name for name, array in found.items() if classes(array, signature.labels) is not None)
    return signature.replace(outputs=outputs_of(golden), answer=answer or next(named, None))
