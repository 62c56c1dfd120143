"""The training step of the last layer does what PyTorch does, step by step, and the parts give the golden outputs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import onnxruntime
import pytest
from served_bundles import brightness_bundle, spoil_golden_outputs, write_bundle

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import Signature, TensorSpec
from wings.devices.training_step import FEATURES, PREDICT, STEP, training_step, write_trainable

CLASSES, SIZE = 5, 7
RATE = np.array(0.3, np.float32)


def session(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])


def test_every_step_is_pytorchs() -> None:
    import torch

    rng = np.random.default_rng(0)
    layer = torch.nn.Linear(SIZE, CLASSES)
    optimizer = torch.optim.SGD(layer.parameters(), lr=float(RATE))
    weight, bias = (parameter.detach().numpy().copy() for parameter in (layer.weight, layer.bias))
    step = session(training_step(CLASSES, SIZE))
    for _ in range(30):
        features = rng.standard_normal((11, SIZE)).astype(np.float32)
        labels = rng.integers(0, CLASSES, 11)
        optimizer.zero_grad()
        expected = torch.nn.functional.cross_entropy(layer(torch.from_numpy(features)), torch.from_numpy(labels))
        expected.backward()
        optimizer.step()
        feed = {"features": features, "labels": labels, "weight": weight, "bias": bias, "learning_rate": RATE}
        loss, weight, bias = step.run(["loss", "new_weight", "new_bias"], feed)
        assert loss == pytest.approx(expected.item(), abs=1e-5)
        assert np.abs(weight - layer.weight.detach().numpy()).max() <= 1e-5
        assert np.abs(bias - layer.bias.detach().numpy()).max() <= 1e-5


def test_step_is_of_operators_that_every_runtime_has() -> None:
    model = training_step(CLASSES, SIZE)
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]


@pytest.mark.parametrize("label", [-1, -CLASSES, CLASSES, -100])
def test_label_outside_the_classes_teaches_nothing(label: int) -> None:
    feed = {"features": np.ones((1, SIZE), np.float32), "labels": np.array([label]), "learning_rate": RATE}
    feed |= {"weight": np.eye(CLASSES, SIZE, dtype=np.float32), "bias": np.ones(CLASSES, np.float32)}
    loss, weight, bias = session(training_step(CLASSES, SIZE)).run(["loss", "new_weight", "new_bias"], feed)
    assert loss == 0
    assert (weight == feed["weight"]).all()
    assert (bias == feed["bias"]).all()


def test_large_scores_do_not_overflow() -> None:
    feed = {"features": np.full((2, SIZE), 1e4, np.float32), "labels": np.array([0, 1])}
    feed |= {"weight": np.eye(CLASSES, SIZE, dtype=np.float32) * 100, "bias": np.zeros(CLASSES, np.float32)}
    outputs = session(training_step(CLASSES, SIZE)).run(None, feed | {"learning_rate": RATE})
    assert all(np.isfinite(output).all() for output in outputs)


def linear_bundle(folder: Path, text: str, **weights: np.ndarray) -> Path:
    proto = onnx_text.model(text, weights)
    inputs = {"x": np.random.default_rng(1).standard_normal((9, 6)).astype(np.float32)}
    spec = (TensorSpec(name="x", dtype="float32", shape=("n", 6)),)
    outputs = (TensorSpec(name="y", dtype="float32", shape=("n", 4)),)
    signature = Signature(inputs=spec, outputs=outputs, primary_output="y", layout="none")
    return write_bundle(folder, proto.SerializeToString(), signature, inputs, name="linear")


HIDDEN = "m = MatMul(x, hidden) h = Relu(m)"
ENDS = {
    "gemm": ("float[8,4] w, float[4] b", "y = Gemm <alpha = 0.5, beta = 2.0> (h, w, b)"),
    "transposed": ("float[4,8] w", "y = Gemm <transB = 1> (h, w)"),
    "matmul": ("float[8,4] w, float[4] b", "z = MatMul(h, w) y = Add(b, z)"),
    "softmax": ("float[8,4] w, float[4] b", "z = Gemm(h, w, b) y = Softmax <axis = 1> (z)"),
    "quantized": (
        "float[8,4] w, float s = {0.05}, uint8 zero = {128}, float t = {0.02}, int8 none = {0}, float[4] b",
        """q = QuantizeLinear(w, t, none) v = DequantizeLinear(q, t, none) i = QuantizeLinear(h, s, zero)
           f = DequantizeLinear(i, s, zero) z = Gemm(f, v, b)
           o = QuantizeLinear(z, s, zero) y = DequantizeLinear(o, s, zero)""",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_parts_give_the_golden_outputs_and_learn_new_labels(tmp_path: Path, end: str) -> None:
    declared, nodes = ENDS[end]
    text = f"net (float[n,6] x) => (float[n,4] y) <float[6,8] hidden, {declared}> {{ {HIDDEN} {nodes} }}"
    bundle = Bundle.open(linear_bundle(tmp_path / "b", text))
    layer = write_trainable(bundle, tmp_path / "t")
    assert layer.sizes() == {"classes": 4, "features": 8}
    assert layer.softmax == (end == "softmax")
    inputs = bundle.golden().inputs
    labels = (bundle.golden().outputs["y"].argmax(1) + 1) % 4
    np.savez(tmp_path / "samples.npz", **inputs, labels=labels)
    command = [sys.executable, tmp_path / "t" / "example.py", tmp_path / "samples.npz", "400", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in lines[:-1]]
    assert len(losses) == 400
    assert losses[-1] < losses[0] / 2
    assert lines[-1] == "9 of 9 samples right"
    [features] = session(tmp_path / "t" / FEATURES).run(None, inputs)
    weight = np.fromfile(tmp_path / "t" / "weight.bin", np.float32).reshape(4, 8)
    bias = np.fromfile(tmp_path / "t" / "bias.bin", np.float32)
    [scores] = session(tmp_path / "t" / PREDICT).run(None, {"features": features, "weight": weight, "bias": bias})
    assert (scores.argmax(1) == labels).all()
    assert (tmp_path / "t" / STEP).stat().st_size < 10_000


def test_model_of_the_image_kind_is_split_too(tmp_path: Path) -> None:
    layer = write_trainable(Bundle.open(brightness_bundle(tmp_path / "b")), tmp_path / "t")
    assert layer.weight.tolist() == [[-6], [0], [6]]
    assert layer.bias.tolist() == [3, 0.5, -3]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("z = MatMul(h, w) y = Relu(z)", "the last layer is Relu; expected Gemm or MatMul"),
        ("v = ReduceMean <keepdims = 0> (x) u = Mul(w, v) y = MatMul(h, u)", "depends on the input 'x'"),
    ],
)
def test_model_without_a_linear_layer_at_its_end_is_refused(tmp_path: Path, nodes: str, message: str) -> None:
    text = f"net (float[n,6] x) => (float[n,4] y) <float[6,8] hidden, float[8,4] w> {{ {HIDDEN} {nodes} }}"
    with pytest.raises(ConfigError, match=message):
        write_trainable(Bundle.open(linear_bundle(tmp_path / "b", text)), tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_parts_that_do_not_give_the_golden_outputs_are_not_delivered(tmp_path: Path) -> None:
    bundle = brightness_bundle(tmp_path / "b")
    spoil_golden_outputs(bundle)
    with pytest.raises(StageError, match=r"--trainable: output 'y' of the parts differs by"):
        write_trainable(Bundle.open(bundle), tmp_path / "t")


def test_other_tasks_are_refused(tmp_path: Path) -> None:
    bundle = Bundle.open(brightness_bundle(tmp_path / "b"))
    signature = bundle.contract.signature.replace(task="regression")
    other = Bundle(bundle.folder, bundle.contract.replace(signature=signature), bundle.manifest)
    with pytest.raises(ConfigError, match="the model's task is regression; only classification can be trained"):
        write_trainable(other, tmp_path / "t")
