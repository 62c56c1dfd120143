"""Dynamic quantisation: weights now, activations at each call. Made for matrix products; convolutions suffer."""

from pathlib import Path
from typing import Literal

from onnxruntime.quantization import QuantType, quantize_dynamic
from pydantic import Field

from tasks.data.dataset import Split
from tasks.frozen import Frozen
from tasks.model_file import is_large_file

TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}


class DynamicInt8(Frozen):
    """Weights in 8 bits, activation ranges found at each call."""

    kind: Literal["dynamic"] = "dynamic"
    weights: Literal["u8", "s8"] = Field("u8", description="type of the weights")

    @property
    def name(self) -> str:
        """The candidate's name."""
        return f"dynamic-{self.weights}"

    def write(self, source: Path, calibration: Split | None, target: Path) -> int:
        """Quantise `source` to `target`; calibration images are not needed."""
        quantize_dynamic(
            source, target, weight_type=TYPES[self.weights], use_external_data_format=is_large_file(source)
        )
        return 0
