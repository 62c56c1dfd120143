"""The same steps as the pipeline's, as a person writes them in an afternoon: no gates, no record, no resume.

It trains, exports, checks, compares, optimizes, quantizes and measures accuracy with the same settings. Training is
timed apart, because it is the same work in both. Prints one JSON object: seconds by step.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS: dict[str, float] = {}


@contextmanager
def step(name: str) -> Iterator[None]:
    """Add the time spent inside to a step."""
    start = time.perf_counter()
    yield
    SECONDS[name] = SECONDS.get(name, 0.0) + time.perf_counter() - start


def main(folder: Path, epochs: int) -> None:
    """Do all of it in one folder."""
    with step("imports"):
        import numpy as np
        import onnx
        import onnxoptimizer
        import onnxruntime as ort
        import onnxsim
        import onnxslim
        import torch
        from onnxruntime.quantization import (
            CalibrationDataReader,
            QuantFormat,
            QuantType,
            quantize_dynamic,
            quantize_static,
        )
        from onnxruntime.quantization.shape_inference import quant_pre_process
        from PIL import Image
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
        from torchvision.models import resnet18

    with step("data"):
        digits = load_digits()
        images = np.stack(
            [
                np.asarray(Image.fromarray(i.astype(np.float32)).resize((32, 32), Image.Resampling.BILINEAR))
                for i in digits.images
            ]
        )
        inputs = np.repeat(images[:, None] / 16 * 2 - 1, 3, axis=1).astype(np.float32)
        labels = digits.target.astype(np.int64)
        rest, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
        rest, calibration = train_test_split(rest, test_size=128, stratify=labels[rest], random_state=0)
        train, _validation = train_test_split(rest, test_size=180, stratify=labels[rest], random_state=0)

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
            for part in np.array_split(random.permutation(train), -(-len(train) // 32)):
                optimizer.zero_grad()
                loss(network(torch.from_numpy(inputs[part])), torch.from_numpy(labels[part])).backward()
                optimizer.step()
        network.eval()
        with torch.inference_mode():
            answers = {
                name: torch.cat([network(x) for x in torch.from_numpy(inputs[part]).split(64)]).numpy()
                for name, part in {"train": train, "test": test}.items()
            }

    def session(path: Path, level: object = None, save: Path | None = None) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if level is not None:
            options.graph_optimization_level = level
        if save is not None:
            options.optimized_model_filepath = str(save)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def check(path: Path, batches: tuple[int, ...] = (1, 2, 3, 7)) -> None:
        with step("structure"):
            onnx.checker.check_model(str(path), full_check=True)
        with step("numerics"):
            run = session(path)
            for batch in batches:
                for _ in range(2):  # real and random samples
                    for start in range(0, 32, batch):
                        run.run(None, {"input": inputs[test[start : min(start + batch, 32)]]})

    def accuracy(path: Path) -> float:
        with step("accuracy"):
            run = session(path)
            found = np.concatenate([run.run(None, {"input": inputs[part]})[0] for part in np.array_split(test, 23)])
            return float(np.mean(found.argmax(1) == labels[test]))

    class Reader(CalibrationDataReader):
        """Eight calibration images at a time."""

        def __init__(self) -> None:
            self.parts = iter(np.array_split(inputs[calibration], 16))

        def get_next(self) -> dict[str, np.ndarray] | None:
            part = next(self.parts, None)
            return None if part is None else {"input": part}

    model = folder / "model.onnx"
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
    check(model)
    made = []
    levels = ort.GraphOptimizationLevel
    for name, level in {
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }.items():
        with step("optimize"):
            session(model, level, folder / f"{name}.onnx")
        made.append(folder / f"{name}.onnx")
    for name, optimize in {
        "onnxoptimizer": lambda m: onnxoptimizer.optimize(
            m, onnxoptimizer.get_fuse_and_elimination_passes(), fixed_point=True
        ),
        "onnxsim": lambda m: onnxsim.simplify(m)[0],
        "onnxslim": onnxslim.slim,
    }.items():
        with step("optimize"):
            onnx.save(optimize(onnx.load(model)), folder / f"{name}.onnx")
        made.append(folder / f"{name}.onnx")
    for path in made:
        check(path)
        accuracy(path)
    for activations in (QuantType.QUInt8, QuantType.QInt8):
        path = folder / f"static-{activations}.onnx"
        with step("quantize"):
            quant_pre_process(model, folder / "prepared.onnx", skip_symbolic_shape=True)
            quantize_static(
                folder / "prepared.onnx",
                path,
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=activations,
                weight_type=QuantType.QInt8,
            )
        accuracy(path)
    for weights in (QuantType.QUInt8, QuantType.QInt8):
        path = folder / f"dynamic-{weights}.onnx"
        with step("quantize"):
            quantize_dynamic(model, path, weight_type=weights)
        accuracy(path)
    if not answers["test"].shape == (360, 10):
        raise SystemExit("the model has no answers")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch), int(sys.argv[1]))
    print(json.dumps(SECONDS))
