"""The same steps as the pipeline's, as a person writes them in an afternoon: no gates, no record, no resume.

It trains, exports, checks, compares, optimizes, quantizes and measures accuracy with the same settings. Training is
timed apart, because it is the same work in both. Prints one JSON object: seconds by step.
"""

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

SECONDS: dict[str, float] = {}
PACKAGES = (
    "numpy", "onnx", "onnxoptimizer", "onnxruntime", "onnxruntime.quantization", "onnxsim", "onnxslim", "torch",
    "PIL.Image", "sklearn.datasets", "sklearn.model_selection", "torchvision.models",
)  # fmt: skip


class Data(NamedTuple):
    """All images, shape (n, 3, 32, 32), their classes, and the indices of each split."""

    inputs: Any
    labels: Any
    train: Any
    test: Any
    calibration: Any


@contextmanager
def step(name: str) -> Iterator[None]:
    """Add the time spent inside to a step."""
    start = time.perf_counter()
    yield
    SECONDS[name] = SECONDS.get(name, 0.0) + time.perf_counter() - start


def import_packages() -> None:
    """Import what the functions below import again, without cost."""
    with step("imports"):
        for name in PACKAGES:
            importlib.import_module(name)


def load_data() -> Data:
    """Load the digits as the demo does."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    with step("data"):
        digits = load_digits()
        bilinear = Image.Resampling.BILINEAR
        images = [Image.fromarray(i.astype(np.float32)).resize((32, 32), bilinear) for i in digits.images]
        inputs = np.repeat(np.stack([*map(np.asarray, images)])[:, None] / 16 * 2 - 1, 3, axis=1).astype(np.float32)
        labels = digits.target.astype(np.int64)
        rest, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
        rest, calibration = train_test_split(rest, test_size=128, stratify=labels[rest], random_state=0)
        train, _validation = train_test_split(rest, test_size=180, stratify=labels[rest], random_state=0)
    return Data(inputs, labels, train, test, calibration)


def train_network(data: Data, epochs: int) -> Any:
    """Train a ResNet-18, and run it on the training and test images."""
    import numpy as np
    import torch
    from torchvision.models import resnet18

    with step("train"):
        torch.manual_seed(0)
        random = np.random.default_rng(0)
        network = resnet18(num_classes=10)
        network.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        network.maxpool = torch.nn.Identity()
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.002, weight_decay=0.01)
        loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
        for _ in range(epochs):
            network.train()
            for part in np.array_split(random.permutation(data.train), -(-len(data.train) // 32)):
                optimizer.zero_grad()
                loss(network(torch.from_numpy(data.inputs[part])), torch.from_numpy(data.labels[part])).backward()
                optimizer.step()
        network.eval()
        with torch.inference_mode():
            for part in (data.train, data.test):
                outputs = torch.cat([network(x) for x in torch.from_numpy(data.inputs[part]).split(64)]).numpy()
    if outputs.shape != (len(data.test), 10):
        raise SystemExit("the network has no outputs for the test images")
    return network


def export(network: Any, model: Path) -> None:
    """Export the network."""
    import torch

    with step("export"):
        torch.onnx.export(
            network,
            (torch.zeros(2, 3, 32, 32),),
            model,
            dynamo=False,
            opset_version=18,
            input_names=["input"],
            output_names=["logits"],
            dynamic_axes={"input": {0: "batch"}, "logits": {0: "batch"}},
        )


def session(path: Path, level: Any = None, save: Path | None = None) -> Any:
    """Open a model, and save its optimized graph where asked."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    if level is not None:
        options.graph_optimization_level = level
    if save is not None:
        options.optimized_model_filepath = str(save)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(path: Path, data: Data, batches: tuple[int, ...] = (1, 2, 3, 7)) -> None:
    """Check a model's structure, and run it at several batch sizes."""
    import onnx

    with step("structure"):
        onnx.checker.check_model(str(path), full_check=True)
    with step("numerics"):
        run = session(path)
        for batch in batches:
            for _ in range(2):  # real and random samples
                for start in range(0, 32, batch):
                    run.run(None, {"input": data.inputs[data.test[start : min(start + batch, 32)]]})


def accuracy(path: Path, data: Data) -> float:
    """Return a model's accuracy on the test images."""
    import numpy as np

    with step("accuracy"):
        run = session(path)
        parts = np.array_split(data.test, 23)
        found = np.concatenate([run.run(None, {"input": data.inputs[part]})[0] for part in parts])
        return float(np.mean(found.argmax(1) == data.labels[data.test]))


def optimize(model: Path, folder: Path) -> list[Path]:
    """Write what each optimizer makes of a model."""
    import onnx
    import onnxoptimizer
    import onnxruntime as ort
    import onnxsim
    import onnxslim

    made, levels = [], ort.GraphOptimizationLevel
    for name in ("basic", "extended", "all"):
        made.append(folder / f"{name}.onnx")
        with step("optimize"):
            session(model, getattr(levels, f"ORT_ENABLE_{name.upper()}"), made[-1])
    passes = onnxoptimizer.get_fuse_and_elimination_passes()
    optimizers = {
        "onnxoptimizer": lambda proto: onnxoptimizer.optimize(proto, passes, fixed_point=True),
        "onnxsim": lambda proto: onnxsim.simplify(proto)[0],
        "onnxslim": onnxslim.slim,
    }
    for name, optimizer in optimizers.items():
        made.append(folder / f"{name}.onnx")
        with step("optimize"):
            onnx.save(optimizer(onnx.load(model)), made[-1])
    return made


def quantize(model: Path, folder: Path, data: Data) -> Iterator[Path]:
    """Write and yield each quantized model."""
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Eight calibration images at a time."""

        def __init__(self) -> None:
            self.parts = iter(np.array_split(data.inputs[data.calibration], 16))

        def get_next(self) -> Any:
            part = next(self.parts, None)
            return None if part is None else {"input": part}

    for activations in (QuantType.QUInt8, QuantType.QInt8):
        path, prepared = folder / f"static-{activations}.onnx", folder / "prepared.onnx"
        types = {"activation_type": activations, "weight_type": QuantType.QInt8, "per_channel": True}
        with step("quantize"):
            quant_pre_process(model, prepared, skip_symbolic_shape=True)
            quantize_static(prepared, path, Reader(), **types)
        yield path
    for weights in (QuantType.QUInt8, QuantType.QInt8):
        path = folder / f"dynamic-{weights}.onnx"
        with step("quantize"):
            quantize_dynamic(model, path, weight_type=weights)
        yield path


def main(folder: Path, epochs: int) -> None:
    """Do all of it in one folder."""
    import_packages()
    data, model = load_data(), folder / "model.onnx"
    export(train_network(data, epochs), model)
    check(model, data)
    for path in optimize(model, folder):
        check(path, data)
        accuracy(path, data)
    for path in quantize(model, folder, data):
        accuracy(path, data)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch), int(sys.argv[1]))
    print(json.dumps(SECONDS))
