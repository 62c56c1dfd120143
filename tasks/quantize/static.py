"""Static quantisation: weights and activations, with ranges from real calibration images."""

from pathlib import Path
from typing import Literal

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from pydantic import Field

from tasks.data.dataset import Split
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import is_large_file
from tasks.runtime.calls import Calls, calls
from tasks.runtime.session import open_session

BATCH = 8
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

    def write(self, source: Path, calibration: Split | None, target: Path) -> int:
        """Quantise `source` to `target`; return how many calibration samples were used."""
        if calibration is None:
            raise StageError("static quantisation needs the split 'calibration', which the data does not have")
        samples = calibration.take(slice(0, self.images))
        used = calls(open_session(source, level="off"), samples)
        prepared = target.with_name("prepared.onnx")
        # Symbolic shape inference helps language models and fails on many others; ONNX's own is enough here.
        large = is_large_file(source)
        quant_pre_process(source, prepared, skip_symbolic_shape=True, save_as_external_data=large)
        quantize_static(
            prepared,
            target,
            _Reader(used),
            quant_format=QuantFormat.QDQ,
            per_channel=self.per_channel,
            activation_type=TYPES[self.activations],
            weight_type=TYPES[self.weights],
            calibrate_method=CalibrationMethod.MinMax,
            use_external_data_format=large,
        )
        prepared.unlink()
        return len(used)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Feeds the calibration samples, eight at a time where the model takes that many."""

    def __init__(self, samples: Calls) -> None:
        batch = samples.batch(BATCH)
        self.feeds = (samples.feed(start, batch) for start in range(0, len(samples), batch))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)
