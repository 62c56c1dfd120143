"""Teach the last layer with samples of your own, on any runtime that runs ONNX.

    pip install onnxruntime numpy && python example.py SAMPLES.npz STEPS LEARNING_RATE

SAMPLES.npz has one array for each input of the model, and `labels` with the class of each sample, by number.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

onnxruntime.disable_telemetry_events()
FOLDER = Path(__file__).parent


def session(name: str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(FOLDER / name), providers=["CPUExecutionProvider"])


def main(file: str, steps: int, learning_rate: float) -> None:
    sizes = json.loads((FOLDER / "trainable.json").read_text())
    weight = np.fromfile(FOLDER / "weight.bin", np.float32).reshape(sizes["classes"], sizes["features"])
    bias = np.fromfile(FOLDER / "bias.bin", np.float32)
    samples = dict(np.load(file))
    labels = samples.pop("labels").astype(np.int64)
    (features,) = session("features.onnx").run(None, samples)  # once: the layers before the last one stay as they are
    step, rate = session("training_step.onnx"), np.array(learning_rate, np.float32)
    for number in range(steps):
        feed = {"features": features, "labels": labels, "weight": weight, "bias": bias, "learning_rate": rate}
        loss, weight, bias = step.run(["loss", "new_weight", "new_bias"], feed)
        print(f"step {number + 1}: loss {loss:.6f}")
    (scores,) = session("predict.onnx").run(None, {"features": features, "weight": weight, "bias": bias})
    print(f"{int((scores.argmax(1) == labels).sum())} of {len(labels)} samples right")
    weight.tofile(FOLDER / "weight.bin")
    bias.tofile(FOLDER / "bias.bin")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
