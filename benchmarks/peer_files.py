"""What users would pick instead of the product's choice, or make by hand: raced in peers.py, made once and kept."""

import math
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
from calibration_feeds import one_by_one
from networks import CACHE, Network, made, trained
from onnx import NodeProto, numpy_helper, version_converter
from onnxruntime.quantization import QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from pydantic import Field

from frameworks.keras.classifier_training import KerasTraining
from frameworks.keras.exporter import Tf2Onnx
from frameworks.keras.kinds import KerasCompiled, KerasEager
from frameworks.torch.classifier_training import TorchTraining
from frameworks.torch.kinds import TorchCompiled, TorchEager
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.datasets import read_split
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import SPLITS
from gauntlet.metrics.error_metrics import sqnr_db
from gauntlet.race.contender import Entry
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.worker_client import WorkerClient, WorkerFailed
from gauntlet.targets import OrtCpu, Target
from gauntlet.targets.environments import RuntimeEnvironment, folder, make, python
from wings.providers.openvino import OpenVino, OrtOpenVino

NNCF = RuntimeEnvironment(python=("nncf==3.4.0", "onnx==1.22.0", "onnxruntime==1.32.0", "openvino==2026.4.1"))
OLIVE = RuntimeEnvironment(
    python=("olive-ai==0.13.0", "onnxruntime==1.31.1", "requests==2.34.2")
)  # it does not name the last
REFERENCE = "ONNX Runtime, FP32"
PICTURES = {"train": 16, "validation": 16, "calibration": 32, "test": 64}
TIMEOUT_S = 300
UNTRAINED = ("accuracy.max_accuracy_drop=1", "accuracy.min_sqnr_db=20")
"""Settings of `gauntlet run` for a network that saw noise: nothing is known of its accuracy."""


class Row(Frozen):
    """A file on a target."""

    file: Path
    target: Target
    sqnr_db: Number = Field(math.nan, description="of the outputs, against those of the network's own framework")
    accuracy: Number = Field(math.nan, description="share of correct predictions")

    @property
    def size_bytes(self) -> int:
        """Of all that is shipped."""
        weights = self.file.with_suffix(".bin")
        return self.file.stat().st_size + (weights.stat().st_size if weights.is_file() else 0)

    def entry(self) -> Entry:
        """Return it as the race takes it."""
        return Entry(self.file, self.target.command(), self.target.options(), self.target.name)


class Prepared(Frozen):
    """What is kept, by name."""

    peers: dict[str, Row]


def network_of(name: str) -> tuple[Network, tuple[str, ...]]:
    """Return a network, and the settings that its candidates are judged by, where they are not the default ones."""
    if name == "resnet18":
        return trained(name), ()
    if name == "efficientnetb0":
        return made(f"peers-{name}", Digits(layout="NHWC"), KerasTraining(epochs=3), Tf2Onnx()), ()
    learning = TorchTraining(architecture=f"torchvision/{name}", epochs=1, batch_size=8, learning_rate=1e-5)
    return made(f"peers-{name}", noise(), learning, TorchScript()), UNTRAINED


def noise() -> NpzArrays:
    """Return pictures of 224 pixels with nothing on them, of ten classes."""
    place, rng = CACHE / "noise-224", np.random.default_rng(0)
    place.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        if not (place / f"{split}.npz").is_file():
            images = rng.standard_normal((PICTURES[split], 3, 224, 224), dtype=np.float32)
            np.savez(place / f"{split}.npz", input=images, labels=np.arange(PICTURES[split]) % 10)
    return NpzArrays(path=place, labels=tuple("0123456789"))


def peers(network: Network, tools: list[str]) -> dict[str, Row]:
    """Return what users pick, as the tools' guides show it; `tools` are those that are not in this environment."""
    model, out = network.store.path(network.kept.model), network.workspace("peers").folder
    calibration = images(network, "calibration", 128)
    np.savez(out / "calibration.npz", **calibration)
    quant_pre_process(model, out / "prepared.onnx")
    quantize_static(out / "prepared.onnx", out / "defaults.onnx", one_by_one(calibration))
    careful = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
    quantize_static(out / "prepared.onnx", out / "u8s8.onnx", one_by_one(calibration), **careful)
    simplified(model, out / "onnxsim.onnx")
    files = {
        REFERENCE: Row(file=model, target=OrtCpu()),
        "ONNX Runtime, FP32 after onnxsim": Row(file=out / "onnxsim.onnx", target=OrtCpu()),
        "`quantize_static`, its defaults": Row(file=out / "defaults.onnx", target=OrtCpu()),
        "`quantize_static`, U8S8, in ONNX Runtime": Row(file=out / "u8s8.onnx", target=OrtCpu()),
        "`quantize_static`, U8S8, in OpenVINO": Row(file=out / "u8s8.onnx", target=OpenVino(precision="default")),
        "`quantize_static`, U8S8, in ORT's OpenVINO provider": Row(file=out / "u8s8.onnx", target=OrtOpenVino()),
        "OpenVINO, f32": Row(file=model, target=OpenVino(precision="f32")),
        "OpenVINO, its default": Row(file=model, target=OpenVino(precision="default")),
        "ORT's OpenVINO provider, f32": Row(file=model, target=OrtOpenVino()),
    }
    foreign = {
        "OpenVINO + NNCF INT8": ("nncf", NNCF, ".xml", OpenVino(precision="default")),
        "Olive, static quantization": ("olive", OLIVE, ".onnx", OrtCpu()),
    }
    for name, (tool, wanted, suffix, target) in foreign.items():
        if tool not in tools:
            continue
        environment = make(folder("openvino").with_name(tool), wanted, print)
        file = out / f"{tool}{suffix}"
        script = Path(__file__).with_name("peer_quantizers.py")
        command = (python(str(environment)), script, tool, model, out / "calibration.npz", file)
        quiet = os.environ | {"OLIVE_DISABLE_TELEMETRY": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)
        if done.returncode:
            print(f"{name}: failed: {' '.join((done.stderr or done.stdout).strip().splitlines()[-2:])}")
        else:
            files[name] = Row(file=file, target=target)
    frameworks: dict[str, Target] = {
        "PyTorch, eager": TorchEager(),
        "PyTorch, compiled": TorchCompiled(),
        "Keras, eager": KerasEager(),
        "Keras, compiled (XLA)": KerasCompiled(),
        "Keras, `tf.function`": KerasCompiled(xla=False),
    }
    source = network.kept.source and network.store.path(network.kept.source)
    files |= {n: Row(file=source, target=t) for n, t in frameworks.items() if source and not t.rejection_reason(source)}
    return judged(files, network)


def simplified(model: Path, path: Path) -> None:
    """Write what onnxsim makes of a model."""
    import onnxsim

    proto, right = onnxsim.simplify(onnx.load(model))
    if not right:
        raise StageError(f"onnxsim changed what {model.name} computes")
    onnx.save(proto, path)


def images(network: Network, split: str, count: int | None = None) -> dict[str, np.ndarray]:
    """Return the first images of a split, or all, by input."""
    taken = read_split(network.store.path(network.kept.splits[split])).take(slice(0, count))
    return {name: np.asarray(values, dtype=np.float32) for name, values in taken.items()}


def judged(files: dict[str, Row], network: Network) -> dict[str, Row]:
    """Return the rows that run, with the quality of their outputs for the test images, each on its own target."""
    golden, alive = Golden.load(network.store.path(network.kept.golden)), {}
    inputs = network.workspace("race").folder / "test.npz"
    np.savez(inputs, **images(network, "test"))
    for name, row in files.items():
        try:
            scores = next(iter(outputs(row.entry(), inputs).values()))
        except WorkerFailed as error:
            print(f"{name}: {error}")
            continue
        right = float(np.mean(scores.argmax(axis=1) == golden.labels))
        noise_db = sqnr_db(scores, next(iter(golden.test_outputs.values())))
        alive[name] = row.replace(sqnr_db=noise_db, accuracy=right)
    return alive


def outputs(entry: Entry, inputs: Path, batch: int = 8) -> NamedArrays:
    """Return all outputs for all inputs, shape (n, ...) each."""
    with WorkerClient(entry.command) as worker, tempfile.TemporaryDirectory() as place:
        worker.load(entry.model, inputs, usable_threads(), TIMEOUT_S, entry.options)
        path = Path(place) / "outputs.npz"
        names = worker.request({"do": "write_outputs", "batch": batch, "path": str(path)}, TIMEOUT_S)["outputs"]
        with np.load(path) as file:
            return {name: np.asarray(file[name]) for name in names}


OPSET = 17
RECIPES = {"8 bit": False, "7 bit": True}
"""Name of a file -> `reduce_range` of `quantize_static`."""


def quantized_by_hand(model: Path, samples: NamedArrays, folder: Path) -> dict[str, Path]:
    """Return the INT8 files of a model: raised to opset 17, its constants lifted, quantized per channel.

    `samples` are for calibration, of the model's one input; the files are written to `folder`.
    """
    raised, prepared = folder / "raised.onnx", folder / "prepared.onnx"
    onnx.save(with_initializers(at_opset(with_initializers(onnx.load(model)))), raised)
    quant_pre_process(raised, prepared, skip_symbolic_shape=True)  # it fails for some graphs
    files = {}
    for name, reduce_range in RECIPES.items():
        files[name] = folder / f"{name.replace(' ', '-')}.onnx"
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "reduce_range": reduce_range}
        quantize_static(prepared, files[name], one_by_one(samples), per_channel=True, **types)
    return files


def at_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model at opset 17 at least."""
    version = next(imported.version for imported in proto.opset_import if imported.domain in ("", "ai.onnx"))
    return proto if version >= OPSET else version_converter.convert_version(proto, OPSET)


def with_initializers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Make initializers of Constant nodes, and take initializers out of the inputs."""
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if value is None:
            nodes.append(node)
        else:
            proto.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(value), node.output[0]))
    stored = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in stored]
    del proto.graph.node[:], proto.graph.input[:]
    proto.graph.node.extend(nodes)
    proto.graph.input.extend(inputs)
    proto.ir_version = max(proto.ir_version, 8)
    return proto
