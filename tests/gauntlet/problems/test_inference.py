"""What outputs mean is inferred from the graph and from their values; numbers stay numbers."""

from functools import cache

import numpy as np
import onnx
import onnx_text
import pytest
from random_outputs import SAMPLES, SIZE, boxes, floats, of_model, rare, sigmoid, uniform

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Task
from gauntlet.problems.inference import infer_problem

pytest.importorskip("wings.detection")  # boxes and masks are told from classes and numbers
pytest.importorskip("wings.embedding")
pytest.importorskip("wings.multi_label")


def head(last: str, outputs: str, values: int = 5, features: int = 12) -> onnx.ModelProto:
    """A product of vectors with random weights, and what follows it."""
    return onnx_text.model(
        f"m (float[n,{features}] x) => ({outputs}) <float[{features},{values}] w> {{ z = MatMul(x, w) {last} }}"
    )


def on_image(last: str, outputs: str, channels: int) -> onnx.ModelProto:
    """A convolution of images with random weights, and what follows it."""
    return onnx_text.model(
        f"""m (float[n,3,16,16] image) => ({outputs}) <float[{channels},3,3,3] w>
        {{ z = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(image, w) {last} }}"""
    )


@cache
def trained(loss: str, values: int) -> onnx.ModelProto:
    """A network trained on digits: a class of each (`classes`), or the numbers that describe its shape (`numbers`)."""
    import torch
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    pixels, classes = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target % values)
    y, x = np.mgrid[:8, :8]
    moments = [(digits.images * part).sum(axis=(1, 2)) / digits.images.sum(axis=(1, 2)) for part in (x, y, x * y)]
    numbers = torch.tensor(np.stack([(m - m.mean()) / m.std() for m in moments[:values]], axis=1), dtype=torch.float32)
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, values))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(12):
        for batch in torch.randperm(len(pixels)).split(64):
            out = net(pixels[batch])
            if loss == "classes":
                error = torch.nn.functional.cross_entropy(out, classes[batch])
            else:
                error = torch.nn.functional.mse_loss(out, numbers[batch])
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
    weights = {name.replace(".", "_"): tensor.numpy() for name, tensor in net.state_dict().items()}
    text = f"""m (float[n,64] pixels) => (float[n,{values}] output)
        {{ a = Gemm<transB = 1>(pixels, "0_weight", "0_bias") b = Relu(a)
           output = Gemm<transB = 1>(b, "2_weight", "2_bias") }}"""
    return onnx_text.model(
        text.replace('"0_', "first_").replace('"2_', "last_").replace('"', ""),
        {f"{'first' if name[0] == '0' else 'last'}{name[1:]}": array for name, array in weights.items()},
    )


def digits() -> NamedArrays:
    from sklearn.datasets import load_digits

    return {"pixels": (load_digits().data[:SAMPLES] / 16).astype(np.float32)}


@pytest.mark.parametrize(
    ("last", "outputs", "reason"),
    [
        ("y = Softmax<axis = 1>(z)", "float[n,5] y", "Softmax"),
        ("a = LogSoftmax<axis = 1>(z) y = Identity(a)", "float[n,5] y", "LogSoftmax"),
        (
            "y = Identity(z) i = ArgMax<axis = 1, keepdims = 0>(z)",
            "float[n,5] y, int64[n] i",
            "at the class that i names",
        ),
        ("logits = Identity(z)", "float[n,5] logits", "the name of class scores"),
    ],
)
def test_scores_of_classes_are_recognized_by_what_computes_and_names_them(last: str, outputs: str, reason: str) -> None:
    problem = of_model(head(last, outputs), {"x": floats(12)})
    assert (problem.task, problem.primary_output) == ("classification", outputs.split()[1].strip(","))
    assert reason in problem.reason


def test_probabilities_are_recognized_without_a_graph_and_from_random_samples() -> None:
    powers = np.exp(floats(4))
    outputs = {"label": powers.argmax(axis=1), "scores": powers / powers.sum(axis=1, keepdims=True)}
    problem = infer_problem({"x": floats(7)}, outputs, real=False)
    assert (problem.task, problem.primary_output) == ("classification", "scores")


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_logits_are_recognized_by_their_sum_which_training_keeps(classes: int) -> None:
    problem = of_model(trained("classes", classes), digits())
    assert (problem.task, problem.primary_output) == ("classification", "output")
    assert "sums to nearly the same" in problem.reason
    assert of_model(trained("classes", classes), digits(), real=False).task == "arrays"


def test_image_that_becomes_a_thousand_numbers_is_classified() -> None:
    last = "p = GlobalAveragePool(z) f = Flatten(p) output = MatMul(f, v)"
    proto = on_image(last, "float[n,1000] output", 8)
    onnx_text.extend(proto, "<float[8,1000] v> { unused = Identity(v) }")
    assert of_model(proto, {"image": floats(3, 16, 16)}, real=False).task == "classification"


def test_as_many_scores_as_labels_are_classes() -> None:
    model, samples = head("output = Identity(z)", "float[n,5] output"), {"x": floats(12)}
    assert of_model(model, samples, classes=5).task == "classification"
    assert of_model(model, samples).task == "arrays"


def test_sigmoid_that_decides_each_class_is_multi_label() -> None:
    model = head("k = Constant<value = float {20}>() s = Mul(z, k) y = Sigmoid(s)", "float[n,5] y")
    assert of_model(model, {"x": floats(12)}).task == "multi-label"


def test_vectors_of_length_1_are_embeddings() -> None:
    problem = of_model(head("y = LpNormalization<axis = 1>(z)", "float[n,32] y", 32), {"x": floats(12)}, real=False)
    assert (problem.task, problem.primary_output) == ("embedding", "y")


@pytest.mark.parametrize(
    ("last", "outputs", "channels"),
    [
        ("y = Softmax<axis = 1>(z)", "float[n,3,16,16] y", 3),
        ("y = Identity(z)", "float[n,6,16,16] y", 6),
        ("y = ArgMax<axis = 1, keepdims = 0>(z)", "int64[n,16,16] y", 4),
        ("k = Constant<value = float {20}>() s = Mul(z, k) y = Sigmoid(s)", "float[n,1,16,16] y", 1),
    ],
)
def test_maps_of_classes_are_segmentation(last: str, outputs: str, channels: int) -> None:
    problem = of_model(on_image(last, outputs, channels), {"image": floats(3, 16, 16)})
    assert (problem.task, problem.primary_output) == ("segmentation", "y")


def numbers() -> dict[str, tuple[NamedArrays, NamedArrays]]:
    """Return inputs and outputs of models whose outputs look like classes, boxes or masks, and are numbers."""
    audio, image = {"audio": floats(4000)}, {"image": floats(3, *SIZE)}
    level = floats(1)
    spectrum = {"spectrum": floats(640)}
    rows = boxes()
    pose = np.concatenate([rows, rare(120, 1), uniform(120, 6, high=90)], axis=2)
    return {
        "three opinion scores": (audio, {"scores": 3 + level + 0.3 * floats(3, seed=5)}),
        "an autoencoder": (spectrum, {"logits": spectrum["spectrum"] * 0.9}),
        "a forecast": ({"history": floats(48, 4)}, {"forecast": level + 0.4 * floats(24, seed=5)}),
        "a regression with a sigmoid": (audio, {"y": sigmoid(floats(4))}),
        "a regression of one value": (audio, {"y": sigmoid(9 * floats(1))}),
        "landmarks": (image, {"y": sigmoid(level + 0.2 * floats(10, seed=5)) * 64}),
        "a pose of the head": (image, {"y": floats(3, seed=5) * 20}),
        "a rotation of length 1": (image, {"y": floats(4) / np.linalg.norm(floats(4), axis=1, keepdims=True)}),
        "an embedding of any length": (image, {"y": floats(128, seed=5)}),
        "logits of the next token": ({"tokens": np.ones((SAMPLES, 20), np.int64)}, {"logits": floats(20, 30)}),
        "super-resolution": (image, {"y": uniform(3, 128, 192)}),
        "a denoiser": (image, {"y": floats(3, *SIZE, seed=5)}),
        "depth": (image, {"y": uniform(1, *SIZE, high=0.6)}),
        "heat maps": (image, {"y": uniform(17, 16, 24)}),
        "features": (image, {"y": np.maximum(floats(32, 8, 12), 0)}),
        "boxes with key points": (image, {"y": np.ascontiguousarray(pose.transpose(0, 2, 1))}),
        "boxes as shares of the image": (image, {"y": np.concatenate([rows / 96, rare(120, 5)], axis=2)}),
        "a table of numbers": (image, {"y": floats(9, 120)}),
    }


@pytest.mark.parametrize("what", numbers())
def test_numbers_are_compared_as_numbers(what: str) -> None:
    inputs, outputs = numbers()[what]
    problem = infer_problem(inputs, {name: array.astype(np.float32) for name, array in outputs.items()})
    assert problem.task == "arrays", problem.reason


@pytest.mark.parametrize("values", [2, 3])
def test_trained_regression_is_not_taken_for_a_classifier(values: int) -> None:
    assert of_model(trained("numbers", values), digits()).task == "arrays"


def test_request_decides_and_names_the_output() -> None:
    model, samples = head("y = Identity(z)", "float[n,5] y"), {"x": floats(12)}
    for task in ("classification", "multi-label", "regression", "embedding"):
        problem = of_model(model, samples, task=task)  # type: ignore[arg-type]
        assert (problem.task, problem.primary_output) == (task, "y")
    assert of_model(head("y = Softmax<axis = 1>(z)", "float[n,5] y"), samples, task="arrays").task == "arrays"
    problem = of_model(head("y = Sigmoid(z)", "float[n,1] y", 1), samples, task="classification")  # of one column
    assert (problem.task, problem.primary_output) == ("classification", "y")


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_request_that_no_output_fits_is_refused(task: Task) -> None:
    with pytest.raises(StageError, match=rf"no output has the form of the problem {task}: y float32\['n', 5\]"):
        of_model(head("y = Identity(z)", "float[n,5] y"), {"x": floats(12)}, task=task)
