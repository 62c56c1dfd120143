"""NNCF's accuracy control on an ONNX model; runs in an environment of its own, for repair.py.

    python nncf_accuracy_control.py MODEL.onnx DATA.npz OUT.onnx MAX_DROP GRANULARITY

DATA has the arrays `calibration`, `validation` and `labels`; MAX_DROP is of the accuracy. GRANULARITY, of the weights,
is per-channel or per-tensor. Prints one JSON object: how often the model was evaluated on all images and on some, how
many images that were, the seconds, and what NNCF says of its result.
"""

import json
import logging
import sys
import time
from collections.abc import Iterable

import nncf
import numpy as np
import onnx
import onnxruntime as ort
from nncf.quantization.advanced_parameters import QuantizationParameters


class Told(logging.Handler):
    """Keeps what NNCF says of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the sentences on what was reached, and on what it took."""
        first = record.getMessage().splitlines()[0]
        if any(word in first for word in ("were reverted", "could not achieve", "completed")):
            self.sentences.append(first.rstrip(":"))


class Counted:
    """The validation function; knows how often it was asked."""

    def __init__(self, images: int) -> None:
        self.images, self.counts = images, {"full": 0, "partial": 0, "images": 0}

    def __call__(self, model: onnx.ModelProto, images: Iterable[dict[str, np.ndarray]]) -> tuple[float, list[float]]:
        """Return the accuracy, and one number an image."""
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        values = [float(session.run(None, {name: i["input"]})[0][0].argmax() == i["label"]) for i in images]
        self.counts["full" if len(values) == self.images else "partial"] += 1
        self.counts["images"] += len(values)
        return float(np.mean(values)), values


def main(path: str, data: str, out: str, max_drop: str, granularity: str) -> None:
    """Quantize with accuracy control, save, and tell what it took."""
    arrays, model = np.load(data), onnx.load(path)
    name = model.graph.input[0].name
    pairs = zip(arrays["validation"], arrays["labels"], strict=True)
    items = [{"input": x[None], "label": label} for x, label in pairs]
    validate, told = Counted(len(items)), Told()
    logging.getLogger("nncf").addHandler(told)
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
    print(json.dumps({**validate.counts, "seconds": seconds, "told": told.sentences}))


if __name__ == "__main__":
    main(*sys.argv[1:])
