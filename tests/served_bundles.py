"""Small bundles whose predictions are known: an image's brightness is its class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_text

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, seal
from gauntlet.bundle.contract import BatchLatency, Contract
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from gauntlet.runtime.session import open_session

SIZE = 8
LABELS = ("dark", "middle", "bright")


def brightness_bundle(
    folder: Path,
    *,
    batch: str | int = "n",
    bias: float = 0.0,
    name: str = "brightness",
    busy: int = 0,
    latencies: Sequence[tuple[int, float]] = (),
) -> Path:
    """Make the bundle of a classifier of gray images by their mean; `busy` multiplications make it slow."""
    weights = {"w": np.array([[-6, 0, 6]], np.float32), "b": np.array([3, 0.5 + bias, -3], np.float32)}
    declared, last = "", "y = Gemm(mean, w, b)"
    if busy:
        declared = ", float[512, 512] big, float zero, int64[2] wide, int64[1] axis"
        weights |= {"big": np.full((512, 512), 1 / 512, np.float32), "zero": np.float32(0), "wide": np.array([1, 512])}
        weights |= {"axis": np.array([1])}
        last = f"""h0 = Expand(mean, wide) {" ".join(f"h{i + 1} = MatMul(h{i}, big)" for i in range(busy))}
          rest = ReduceMean<keepdims=1>(h{busy}, axis) nothing = Mul(rest, zero)
          scores = Gemm(mean, w, b) y = Add(scores, nothing)"""
    proto = onnx_text.model(
        f"""brightness (float[{batch}, 1, {SIZE}, {SIZE}] image) => (float[{batch}, 3] y)
        <float[1, 3] w, float[3] b, int64[2] flat{declared}> {{
          pooled = GlobalAveragePool(image)
          mean = Reshape(pooled, flat)
          {last}
        }}""",
        weights | {"flat": np.array([-1, 1])},
    )
    signature = Signature(
        inputs=(TensorSpec(name="image", dtype="float32", shape=(batch, 1, SIZE, SIZE)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(batch, 3)),),
        primary_output="y",
        preprocessing=Preprocessing(height=SIZE, width=SIZE, scale=1 / 255, mean=(0.0,), std=(1.0,)),
        labels=LABELS,
    )
    signature.write(proto)
    levels = np.linspace(0, 1, 16, dtype=np.float32)
    images = np.broadcast_to(levels[:, None, None, None], (16, 1, SIZE, SIZE)).copy()
    return write_bundle(folder, proto.SerializeToString(), signature, {"image": images}, name=name, latencies=latencies)


def write_bundle(
    folder: Path,
    model: bytes,
    signature: Signature,
    inputs: NamedArrays,
    *,
    name: str,
    latencies: Sequence[tuple[int, float]] = (),
) -> Path:
    """Seal a model with the outputs that it has here for some inputs."""
    from gauntlet.runtime.batched_inference import batched_inference

    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL).write_bytes(model)
    outputs = batched_inference(open_session(model, threads=1), inputs).run(4)
    golden = {f"inputs/{k}": v for k, v in inputs.items()} | {f"outputs/{k}": v for k, v in outputs.items()}
    np.savez(folder / GOLDEN, allow_pickle=False, **golden)
    contract = Contract(
        name=name,
        run_id="20260101-000000-test",
        candidate="fp32",
        signature=signature,
        target="ort-cpu",
        latencies=tuple(BatchLatency(batch=batch, median_ms=ms) for batch, ms in latencies),
    )
    (folder / CONTRACT).write_text(contract.model_dump_json(indent=1))
    seal(folder)
    return folder


def spoil_golden_outputs(bundle: Path) -> None:
    """Change what the model of a sealed bundle is to give for the golden inputs."""
    with np.load(bundle / GOLDEN) as file:
        wrong = {name: file[name] + (5 if name.startswith("outputs/") else 0) for name in file.files}
    np.savez(bundle / GOLDEN, **wrong)
    seal(bundle)
