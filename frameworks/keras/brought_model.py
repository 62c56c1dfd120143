"""Pretrained TensorFlow models: a `.keras` file, or a SavedModel folder."""

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from frameworks.input_sizes import outputs_of
from frameworks.keras import files
from frameworks.keras.model import CallableModel, from_network, from_saved_model, nhwc
from frameworks.loaded_model import BroughtFile
from frameworks.session import LoadedModel
from frameworks.trust import untrusted_code
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Store
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import require_test_split, splits_to_score
from tasks.train.facts import TrainFacts, report_model
from tasks.train.other_lengths import Lengths, OtherLengths, cut_samples
from tasks.train.states import StatePairs, with_primary_and_states


class _TensorFlowModel(BroughtFile):
    primary_output: str | None = Field(None, description="output that names the class; default: the first with scores")
    lengths: Lengths = ()
    states: StatePairs = None
    trust: bool = Field(False, description="run the code that the file brings; needed once for each file")

    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow"}

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Load the model and record its golden outputs. See `tasks.train.train`."""
        model, name, path = self._load(workspace.store, workspace.folder)
        test = require_test_split(splits)
        signature = model.with_open_axes(signature) if self.lengths else signature
        names = model.names(signature)
        types = {names[name]: "str" if dtype == "string" else dtype for name, dtype, _ in model.inputs}
        signature = signature.replace(inputs=tuple(spec.replace(dtype=types[spec.name]) for spec in signature.inputs))

        def predict(inputs: NamedArrays) -> NamedArrays:
            return model.predict(inputs, signature)

        # Random integers may lie outside an embedding's table.
        indices = any(spec.dtype.startswith(("int", "uint")) for spec in signature.inputs)
        others = cut_samples(predict, test, signature, self.lengths) if self.lengths else OtherLengths()
        golden = record_golden(predict, test, sizes=others.cases, observed_values_only=indices)
        signature = signature.replace(outputs=outputs_of(golden))
        facts = TrainFacts(
            framework=model.framework,
            architecture=name,
            parameters=model.parameters,
            signature=with_primary_and_states(signature, golden, self),
        )
        return report_model(facts, golden, predict, splits_to_score(splits), workspace, path)

    @classmethod
    def as_taken(cls, samples: NamedArrays, layout: str) -> NamedArrays:
        """Return images in NHWC."""
        return {name: nhwc(array, layout) for name, array in samples.items()}

    def load_model(self, store: Store) -> LoadedModel:
        """Return the model; raise StageError if it cannot be read, or its code is neither trusted nor in the store."""
        with tempfile.TemporaryDirectory() as folder:
            model, name, _ = self._load(store, Path(folder))
        return model.loaded(name)

    def _load(self, store: Store, folder: Path) -> tuple[CallableModel, str, Path]:
        """Return the model, its name, and its copy in the folder.

        Raise StageError if reading it would run code that is not trusted.
        """
        raise NotImplementedError


class KerasModel(_TensorFlowModel):
    """Load a `.keras` file. Its inputs are the data, normalized as the model expects it.

    A file with code in it, such as a Lambda layer, is loaded only with `trust`.
    """

    kind: Literal["keras-model"] = "keras-model"
    model: Path = Field(description="the file that model.save(...) wrote: .keras, or the older .h5")

    def _load(self, store: Store, folder: Path) -> tuple[CallableModel, str, Path]:
        network = files.load(self.model, trust=self.trust or store.holds(self.model))
        path = folder / f"model{self.model.suffix}"
        shutil.copyfile(self.model, path)
        return from_network(network), network.name, path


class SavedModelFolder(_TensorFlowModel):
    """Load one signature of a SavedModel.

    A SavedModel is a program, which may also read and write files: `trust` says that you trust its author.
    """

    kind: Literal["saved-model"] = "saved-model"
    model: Path = Field(description="the folder with saved_model.pb")
    signature: str = Field("serving_default", description="which of its functions")
    exporters: ClassVar[tuple[str, ...]] = ("saved-model", "tf2onnx")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return files.files_of(self.model)

    def _load(self, store: Store, folder: Path) -> tuple[CallableModel, str, Path]:
        path = folder / f"model{files.SAVED_MODEL}"
        files.pack_saved_model(self.model, path, self.signature)
        if not (self.trust or store.holds(path)):
            raise untrusted_code(self.model, files.PROGRAM)
        return from_saved_model(self.model, self.signature), self.model.resolve().name, path
