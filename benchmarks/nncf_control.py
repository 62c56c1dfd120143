"""NNCF's accuracy control on an ONNX model; runs in an environment of its own, for repair.py.

    python nncf_control.py MODEL.onnx DATA.npz OUT.onnx MAX_DROP GRANULARITY

DATA has the arrays `calibration`, `validation` and `labels`; GRANULARITY, of the weights, is per-channel or per-tensor.
Prints one JSON object: how often the whole model was evaluated, how many images that were, and the seconds.
"""

import json
import sys
import time
from collections.abc import Iterable

import nncf
import numpy as np
import onnx
import onnxruntime as ort
from nncf.quantization.advanced_parameters import QuantizationParameters

counts = {"evaluations": 0, "images": 0}


def validate(model: onnx.ModelProto, images: Iterable[dict[str, np.ndarray]]) -> tuple[float, list[float]]:
    """Return the accuracy, and one number an image."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    right = [float(session.run(None, {name: i["input"]})[0].argmax(1)[0] == i["label"]) for i in images]
    counts["evaluations"] += 1
    counts["images"] += len(right)
    return float(np.mean(right)), right


def main(path: str, data: str, out: str, max_drop: str, granularity: str) -> None:
    """Quantise with accuracy control, save, and tell what it took."""
    arrays, model = np.load(data), onnx.load(path)
    name = model.graph.input[0].name
    items = [
        {"input": x[None], "label": label} for x, label in zip(arrays["validation"], arrays["labels"], strict=True)
    ]
    start = time.perf_counter()
    mended = nncf.quantize_with_accuracy_control(
        model,
        calibration_dataset=nncf.Dataset([x[None] for x in arrays["calibration"]], lambda x: {name: x}),
        validation_dataset=nncf.Dataset(items, lambda item: {name: item["input"]}),
        validation_fn=validate,
        max_drop=float(max_drop),
        subset_size=len(arrays["calibration"]),
        advanced_quantization_parameters=nncf.AdvancedQuantizationParameters(
            weights_quantization_params=QuantizationParameters(per_channel=granularity == "per-channel")
        ),
    )
    seconds = time.perf_counter() - start
    onnx.save(mended, out)
    print(json.dumps({**counts, "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
