"""Static quantisation: weights and activations, with ranges from real calibration images."""

from pathlib import Path
from typing import Literal

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from pydantic import Field

from tasks.data.dataset import read_split
from tasks.frozen import Frozen
from tasks.signature import Signature

TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}


class StaticInt8(Frozen):
    """QDQ with MinMax ranges. On x86-64 only unsigned activations become integer kernels."""

    kind: Literal["static"] = "static"
    activations: Literal["u8", "s8"] = Field("u8", description="type of the activations")
    weights: Literal["u8", "s8"] = Field("s8", description="type of the weights")
    per_channel: bool = Field(True, description="one weight range an output channel")
    images: int = Field(128, ge=1, description="calibration images to use, at the most")

    @property
    def name(self) -> str:
        """The candidate's name."""
        return f"static-{self.activations}{self.weights}" + ("" if self.per_channel else "-per-tensor")

    def write(self, source: Path, calibration: Path, signature: Signature, target: Path) -> int:
        """Quantise `source` to `target`; return how many calibration images were used."""
        inputs = read_split(calibration).inputs[: self.images]
        prepared = target.with_name("prepared.onnx")
        # Symbolic shape inference helps language models and fails on many others; ONNX's own is enough here.
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            target,
            _Reader(signature.inputs[0].name, inputs),
            quant_format=QuantFormat.QDQ,
            per_channel=self.per_channel,
            activation_type=TYPES[self.activations],
            weight_type=TYPES[self.weights],
            calibrate_method=CalibrationMethod.MinMax,
        )
        prepared.unlink()
        return len(inputs)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Feeds the calibration images, eight at a time."""

    def __init__(self, name: str, inputs: np.ndarray) -> None:
        self.name, self.batches = name, iter(np.array_split(inputs, max(1, len(inputs) // 8)))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {self.name: batch}
