"""Small labelled problems, each learned in seconds from data that ships with scikit-learn; all randomness is seeded."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from digit_images import DIGITS, TRAINED_ON, Samples, by_step, digits, digits_in_rows, in_square, noisy
from labelled_networks import HIDDEN, convolutional, decoded, line_reader, perceptron, recurrent

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.signature import BoxDecoding, Signature, Task, TensorSpec
from wings.datasets.digit_scenes import DigitScenes

if TYPE_CHECKING:
    import torch

CALIBRATION, BATCH = 128, 32
SCENE = 64
"""Pixels of an image with boxes."""
STREAMS = 40
"""Sequences in the recurrent network's test, of 12 digits of 8 rows each."""
Loss = Callable[..., "torch.Tensor"]


@dataclass
class Trained:
    """A trained network, and the data to test and calibrate it with."""

    signature: Signature
    network: "torch.nn.Module"
    test: NamedArrays
    truth: Array
    calibration: NamedArrays

    def export(self, path: Path) -> Path:
        """Write the network as ONNX."""
        import torch

        names = [spec.name for spec in self.signature.outputs]
        axes = {name: {0: "n"} for name in (*self.test, *names)}
        inputs = tuple(torch.from_numpy(array[:2]) for array in self.test.values())
        names_of = {"input_names": [*self.test], "output_names": names, "dynamic_axes": axes}
        torch.onnx.export(self.network.eval(), inputs, path, **names_of, opset_version=17, dynamo=False)
        return path


def fit(network: "torch.nn.Module", loss: Loss, data: Samples, epochs: int, rate: float = 3e-3) -> None:
    """Train on arrays of shape (n, ...); `loss` takes the network's outputs and the truth."""
    import torch

    inputs, truth = (torch.from_numpy(np.ascontiguousarray(array)) for array in data)
    rng, steps = np.random.default_rng(0), epochs * (len(inputs) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.2)
    network.train()
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(inputs)))
        for chosen in order[: len(order) // BATCH * BATCH].split(BATCH):
            optimizer.zero_grad()
            loss(network(inputs[chosen]), truth[chosen]).backward()
            optimizer.step()
            schedule.step()
    network.eval()


def signature_of(
    task: Task, labels: tuple[str, ...], inputs: NamedArrays, outputs: tuple[str, ...] = ("y",), **more: Any
) -> Signature:
    """Return the signature of a network with these inputs; the first output is the primary one."""
    specs = tuple(TensorSpec(name=k, dtype="float32", shape=("n", *a.shape[1:])) for k, a in inputs.items())
    named = tuple(TensorSpec(name=name, dtype="float32", shape=("n",)) for name in outputs)
    return Signature(task=task, inputs=specs, outputs=named, primary_output=outputs[0], labels=labels, **more)


def trained(
    task: Task,
    network: "torch.nn.Module",
    loss: Loss,
    data: tuple[Samples, Samples],
    labels: tuple[str, ...] = DIGITS,
    epochs: int = 20,
) -> Trained:
    """Train a network with one input and one output; `data` are samples to train on and to test with."""
    train, (inputs, truth) = data
    fit(network, loss, train, epochs)
    test = {"x": inputs}
    return Trained(signature_of(task, labels, test), network, test, truth, {"x": train[0][:CALIBRATION]})


def classification(noise: float, samples: int, network: "torch.nn.Module", epochs: int) -> Trained:
    """Digits with noise, learned from some samples."""
    from torch.nn.functional import cross_entropy

    images, classes = noisy(digits()[0], noise), digits()[1]
    train, test = ((images[part], classes[part]) for part in (slice(samples), slice(TRAINED_ON, None)))
    return trained("classification", network, cross_entropy, (train, test), epochs=epochs)


def unbalanced() -> Trained:
    """A three, an eight, or, in nine of ten samples, another digit."""
    from torch.nn.functional import cross_entropy

    digit = digits()[1]
    kept = (digit != 8) | (np.arange(len(digit)) % 3 == 0)
    images, classes = noisy(digits()[0], 0.4)[kept], np.where(digit == 3, 1, np.where(digit == 8, 2, 0))[kept]
    train, test = ((images[part], classes[part]) for part in (slice(800), slice(800, None)))
    return trained("classification", convolutional(3, width=8), cross_entropy, (train, test), ("other", "3", "8"))


def multi_label() -> Trained:
    """Which digits are among up to four on one image."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    def change(rng: np.random.Generator, images: Array, classes: Array) -> Samples:
        shown = rng.random(classes.shape) < 0.6
        square = in_square(images * shown[:, None, :, None])
        return noisy(square, 0.2), (np.eye(10)[classes] * shown[:, :, None]).max(axis=1).astype(np.int64)

    data = digits_in_rows(4, 3000, 500, change)
    network = convolutional(10, cells=16)
    return trained("multi-label", network, lambda y, t: binary_cross_entropy_with_logits(y, t.float()), data, epochs=15)


def regression() -> Trained:
    """The number that two digits write, and their product, both standardized."""
    from torch.nn.functional import mse_loss

    def change(_: np.random.Generator, images: Array, places: Array) -> Samples:
        numbers = np.stack([10 * places[:, 0] + places[:, 1] - 50, places[:, 0] * places[:, 1] - 20], axis=1)
        return noisy(images.reshape(-1, 1, 8, 16), 0.2), (numbers / (30, 20)).astype(np.float32)

    data = digits_in_rows(2, 3000, 500, change)
    return trained("regression", convolutional(2, cells=8), mse_loss, data, ("number", "product"))


def text() -> Trained:
    """Lines of two to six digits."""
    from torch.nn.functional import ctc_loss

    def change(rng: np.random.Generator, images: Array, classes: Array) -> Samples:
        shown = (rng.random(classes.shape) < 0.75) | (np.arange(6) < 2)
        lines = (images * shown[:, None, :, None]).reshape(-1, 1, 8, 48)
        return noisy(lines, 0.25), np.where(shown, classes, -1)

    def loss(scores: "torch.Tensor", truth: "torch.Tensor") -> "torch.Tensor":
        lengths = (truth >= 0).sum(dim=1)
        steps = lengths.new_full((len(scores),), scores.shape[1])
        return ctc_loss(scores.log_softmax(2).transpose(0, 1), truth[truth >= 0] + 1, steps, lengths)

    train, (images, classes) = digits_in_rows(6, 2500, 400, change)
    lines = np.array(["".join(map(str, row[row >= 0])) for row in classes])
    return trained("text", line_reader(11), loss, (train, (images, lines)), epochs=15)


def embedding() -> Trained:
    """Vectors of noisy digits, learned from seven of the ten classes, tested on all."""
    import torch
    from torch.nn.functional import cross_entropy, normalize

    images, classes = noisy(digits()[0], 0.25), digits()[1]
    known = np.flatnonzero(classes[:TRAINED_ON] < 7)
    centers = normalize(torch.randn(7, 16, generator=torch.Generator().manual_seed(0)))
    data = (images[known], classes[known]), (images[TRAINED_ON:], classes[TRAINED_ON:])
    return trained("embedding", convolutional(16), lambda y, t: cross_entropy(10 * normalize(y) @ centers.T, t), data)


def table(task: Task) -> Trained:
    """A table of scikit-learn's: breast cancer (classification) or diabetes (regression)."""
    from sklearn.datasets import load_breast_cancer, load_diabetes
    from torch.nn.functional import cross_entropy, mse_loss

    numeric = task == "regression"
    data, size = (load_diabetes(), 200) if numeric else (load_breast_cancer(), 250)
    order = np.random.default_rng(0).permutation(len(data.data))
    inputs = ((data.data - data.data.mean(axis=0)) / data.data.std(axis=0))[order].astype(np.float32)
    values = ((data.target[:, None] - data.target.mean()) / data.target.std()).astype(np.float32)
    truth = (values if numeric else data.target.astype(np.int64))[order]
    train, test = ((inputs[part], truth[part]) for part in (slice(size), slice(size, None)))
    network, loss = perceptron(inputs.shape[1], 1 if numeric else 2), mse_loss if numeric else cross_entropy
    labels = ("progression",) if numeric else ("malignant", "benign")
    return trained(task, network, loss, (train, test), labels, epochs=15 if numeric else 30)


def detection() -> Trained:
    """Scenes with boxes; the project's detector, with boxes and probabilities as one output."""
    from frameworks.torch.detector import DetectorSpec, detection_loss

    few = {"validation_images": 10, "calibration_images": 10, "digit_size": (10, 22), "train_images": 2000}
    splits = DigitScenes(**few, image_size=SCENE, max_digits=5, test_images=300).load().splits
    train, (images, truth) = (
        (splits[name].take(slice(None))["input"], splits[name].labels) for name in ("train", "test")
    )
    network, how = DetectorSpec(channels=3, classes=10).build(), BoxDecoding(kind="yolov8", scores="y")
    fit(network, lambda y, t: detection_loss(*y, t), train, 12, 6e-3)
    test = {"x": images}
    signature = signature_of("detection", DIGITS, test, how.outputs, decode=how)
    return Trained(signature, decoded(network, SCENE // 4).eval(), test, truth, {"x": train[0][:CALIBRATION]})


def segmentation() -> Trained:
    """Which pixels of up to four digits belong to which class; the project's segmenter."""
    from frameworks.torch.segmenter import SegmenterSpec, segmentation_loss

    def change(rng: np.random.Generator, images: Array, classes: Array) -> Samples:
        shown = images * (rng.random(classes.shape) < 0.7)[:, None, :, None]
        masks = np.where(shown > 0.3, classes[:, None, :, None] + 1, 0)
        return noisy(in_square(shown), 0.15), in_square(masks)[:, 0]

    network, labels = SegmenterSpec(channels=1, classes=11).build(), ("background", *DIGITS)
    return trained("segmentation", network, segmentation_loss, digits_in_rows(4, 3000, 400, change), labels)


def streaming() -> Trained:
    """Which digit is seen row by row, at each row; the state is an input and an output.

    Samples are steps, in the order (step, stream); their states are those of the FP32 network.
    """
    import torch
    from torch.nn.functional import cross_entropy

    class Unrolled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = recurrent(10)

        def states(self, rows: torch.Tensor) -> torch.Tensor:
            states = [rows.new_zeros(len(rows), HIDDEN)]
            for row in rows.unbind(1):
                states.append(self.cell(row, states[-1])[1])
            return torch.stack(states, 1)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.cell.head(self.states(rows)[:, 1:])
            return scores.transpose(1, 2)

    def change(_: np.random.Generator, images: Array, classes: Array) -> Samples:
        rows = images.transpose(0, 2, 1, 3).reshape(len(images), -1, 8)
        return noisy(rows, 0.05), np.repeat(classes, 8, axis=1)

    data = digits_in_rows(12, 800, STREAMS, change)
    network, (rows, truth) = Unrolled(), data[1]
    fit(network, cross_entropy, data[0], 15, 1e-2)
    with torch.no_grad():
        states = [network.states(torch.from_numpy(part))[:, :-1].numpy() for part in (rows, data[0][0][:8])]
    test, calibration = (
        {"x": by_step(x), "state": by_step(s)} for x, s in zip((rows, data[0][0][:8]), states, strict=True)
    )
    states = (("state", "state_after"),)
    signature = signature_of("classification", DIGITS, test, ("y", "state_after"), layout="none", states=states)
    return Trained(signature, network.cell, test, by_step(truth), calibration)


PROBLEMS: dict[str, Callable[[], Trained]] = {
    "classification-easy": lambda: classification(0.0, TRAINED_ON, convolutional(10), 15),
    "classification-hard": lambda: classification(0.35, 500, convolutional(10, width=8), 30),
    "classification-unbalanced": unbalanced,
    "classification-table": lambda: table("classification"),
    "classification-streaming": streaming,
    "multi-label": multi_label,
    "regression": regression,
    "regression-table": lambda: table("regression"),
    "text": text,
    "embedding": embedding,
    "detection": detection,
    "segmentation": segmentation,
}
