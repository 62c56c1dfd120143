"""Networks that several benchmarks need, made once and kept outside the repository."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from frameworks.torch.classifier_training import TorchTraining
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.frozen import Frozen
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from tasks.data import DataConfig, data
from tasks.export import ExportConfig, export
from tasks.train import TrainConfig, train

CACHE = Path.home() / ".cache" / "onnx-gauntlet" / "benchmarks"
EPOCHS = {"resnet18": 2}


class StoredNetwork(Frozen):
    """What the pipeline's first stages made."""

    model: Artifact
    golden: Artifact
    splits: dict[str, Artifact]
    source: Artifact | None = Field(None, description="the framework's own file")


@dataclass(frozen=True)
class Network:
    """A trained network as ONNX, its data, and a place to work."""

    kept: StoredNetwork
    store: Store
    folder: Path

    def workspace(self, name: str) -> Workspace:
        """Return a workspace on the network's store; it keeps what it holds."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return Workspace(self.store, folder)


def trained(architecture: str) -> Network:
    """Return a network of PyTorch's; the first call trains it on digits."""
    learning = TorchTraining(architecture=architecture, epochs=EPOCHS[architecture], learning_rate=0.001)
    return made(architecture, Digits(), learning, TorchScript())


def made(name: str, dataset: DataConfig, learning: TrainConfig, exporter: ExportConfig) -> Network:
    """Return a network of any kind; the first call makes it, and keeps it under the name."""
    folder = CACHE / name
    file, store = folder / "kept.json", Store(folder / "store")
    if not file.is_file():
        unfinished = Network(StoredNetwork.model_construct(), store, folder)
        prepared = data(dataset, unfinished.workspace("data"))
        source = train(
            learning, unfinished.workspace("train"), splits=prepared.artifacts, signature=prepared.facts.signature
        )
        exported = export(
            exporter,
            unfinished.workspace("export"),
            model=source.artifacts["model"],
            signature=source.facts.signature,
            golden=source.artifacts["golden"],
            files=(),
        )
        kept = StoredNetwork(
            model=exported.artifacts["model"],
            golden=source.artifacts["golden"],
            splits=dict(prepared.artifacts),
            source=source.artifacts["model"],
        )
        file.write_text(kept.model_dump_json())
    return Network(StoredNetwork.model_validate_json(file.read_bytes()), store, folder)
