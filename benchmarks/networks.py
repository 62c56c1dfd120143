"""Networks that several benchmarks need, made once and kept outside the repository."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from pydantic import Field

from frameworks.torch.classifier_training import TorchTraining
from frameworks.torch.torchscript import TorchScript
from gauntlet.calibration.ranges import Method
from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.frozen import Frozen
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.digits import Digits
from tasks.calibrate import CalibrateConfig, calibrate
from tasks.data import DataConfig, data
from tasks.export import ExportConfig, export
from tasks.train import TrainConfig, train

CACHE = Path.home() / ".cache" / "onnx-gauntlet" / "benchmarks"
EPOCHS = {"resnet18": 2}
UNEVEN_PAIRS = 2
DECADES = 3


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

    def calibrated(self, method: Method) -> dict[str, Artifact]:
        """Return the artifacts of the calibration."""
        splits = self.kept.splits
        report = calibrate(
            CalibrateConfig(),
            self.workspace("calibrate"),
            model=self.kept.model,
            calibration=splits["calibration"],
            test=splits["test"],
            methods=(method,),
        )
        return dict(report.artifacts)


def with_uneven_channels(network: Network) -> Network:
    """Return the network with the same answers, and channels whose ranges differ a thousandfold: its INT8 collapses.

    Where a convolution's output goes through a ReLU into one other convolution only, a channel may be scaled, and the
    other's weights scaled back. The first `UNEVEN_PAIRS` such pairs are.
    """
    proto = onnx.load(network.store.path(network.kept.model))
    stored = {t.name: t for t in proto.graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def scale(name: str, factors: np.ndarray) -> None:
        values = numpy_helper.to_array(stored[name]) * factors
        stored[name].CopyFrom(numpy_helper.from_array(values.astype(np.float32), name))

    done, rng = 0, np.random.default_rng(0)
    for node in proto.graph.node:
        then = readers.get(node.output[0], [])
        last = readers.get(then[0].output[0], []) if [n.op_type for n in then] == ["Relu"] else []
        if node.op_type == "Conv" and [n.op_type for n in last] == ["Conv"] and done < UNEVEN_PAIRS:
            factors = 10 ** rng.uniform(-DECADES / 2, DECADES / 2, stored[node.input[1]].dims[0])
            scale(node.input[1], factors[:, None, None, None])
            scale(node.input[2], factors)
            depthwise = stored[last[0].input[1]].dims[1] == 1
            scale(last[0].input[1], 1 / (factors[:, None, None, None] if depthwise else factors[None, :, None, None]))
            done += 1
    made = Network(network.kept, network.store, network.folder / "uneven")
    out = made.workspace("model")
    onnx.save(proto, out.folder / "model.onnx")
    return replace(made, kept=network.kept.replace(model=out.store_file(out.folder / "model.onnx")))


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
