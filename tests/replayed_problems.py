"""Champions and challengers of every problem: models that return their input, with noise where they are worse."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_text
from problem_samples import LABELS, sample
from random_boxes import objects

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, Bundle, seal
from gauntlet.bundle.contract import Contract
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.signature import BoxDecoding, Preprocessing, Signature, Task, TensorSpec
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

NOISE = {"detection": [20, 20, 20, 20, 0, 0], "multi-label": [5]}
"""What a worse model adds, along the last axis, or everywhere."""
IMAGE = Preprocessing(height=96, width=96, scale=1 / 255, mean=(0.5,), std=(0.5,))
BOXES = BoxDecoding(kind="suppressed", scores="y")


@dataclass(frozen=True)
class ReplayedProblem:
    """One problem's requests, shape (n, ...), and its truth."""

    task: Task
    x: Array
    truth: Array | None

    @classmethod
    def of(cls, task: Task, count: int = 300) -> "ReplayedProblem":
        rng = np.random.default_rng(0)
        if task == "arrays":
            return cls(task, rng.standard_normal((count, 5)).astype(np.float32), None)
        if task != "detection":
            return cls(task, *sample(task, rng, count))
        boxes = objects(rng, count, most=2)
        truth = boxes.copy()
        truth[:, :, 5] = 1
        return cls(task, boxes[:, :, [0, 1, 2, 3, 5, 4]], truth)

    @property
    def signature(self) -> Signature:
        shape = ("batch", *self.x.shape[1:])
        x, y = (TensorSpec(name=name, dtype="float32", shape=shape) for name in "xy")
        how = {"decode": BOXES, "preprocessing": IMAGE} if self.task == "detection" else {}
        labels = LABELS if self.task != "arrays" else ()
        return Signature(task=self.task, inputs=(x,), outputs=(y,), primary_output="y", labels=labels, **how)

    def model(self, noise: float) -> onnx.ModelProto:
        shape = ",".join(map(str, self.x.shape[1:]))
        amount = noise * np.array(NOISE.get(self.task, [1]), np.float32)
        text = f"""
            noisy (float[batch,{shape}] x) => (float[batch,{shape}] y) <float[{len(amount)}] amount, float[1] often>
            {{ phase = Mul(x, often) wave = Sin(phase) added = Mul(wave, amount) y = Add(x, added) }}
        """
        return onnx_text.model(text, {"amount": amount, "often": [1000]})

    def outputs(self, noise: float, folder: Path) -> NamedArrays:
        path = folder / f"{noise}.onnx"
        onnx.save(self.model(noise), path)
        return batched_inference(open_session(path, threads=1), {"x": self.x}).run(64)

    def bundle(self, noise: float, folder: Path) -> Bundle:
        folder.mkdir()
        onnx.save(self.model(noise), folder / MODEL)
        np.savez(folder / GOLDEN, **{"inputs/x": self.x[:2], "outputs/y": self.x[:2]})
        contract = Contract(
            name=self.task, run_id=folder.name, candidate="noisy", signature=self.signature, target="ort-cpu"
        )
        (folder / CONTRACT).write_text(contract.model_dump_json())
        seal(folder)
        return Bundle.open(folder)
