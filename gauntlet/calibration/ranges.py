"""The activation ranges of a model: computed once by the calibration, read by every static recipe."""

from pathlib import Path
from typing import Annotated

import numpy as np
from onnxruntime.quantization import CalibrationMethod
from onnxruntime.quantization.calibrate import TensorData, TensorsData, save_tensors_data
from pydantic import Field, ValidationError

from gauntlet.calibration.methods import Entropy, MinMax, Percentile
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number

Method = Annotated[MinMax | Entropy | Percentile, Field(discriminator="kind")]


class Ranges(Frozen):
    """The lowest and the highest value of every activation by each method: float32 values, exact in JSON."""

    images: int = Field(ge=1, description="number of calibration samples")
    methods: dict[str, dict[str, tuple[Number, Number]]] = Field(
        description="method name -> tensor name in the prepared model -> lowest and highest value"
    )

    @classmethod
    def read(cls, path: Path) -> "Ranges":
        """Read the calibration's artifact; StageError if the file is missing or damaged."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise StageError(f"{path}: not a calibration ranges file ({error})") from error

    def write(self, path: Path) -> Path:
        """Write the artifact and return its path."""
        path.write_text(self.model_dump_json(), encoding="utf-8")
        return path

    def write_for_ort(self, method: str, path: Path) -> Path:
        """Write one method's ranges as the calibration cache that `quantize_static` reads; return its path.

        They are labeled MinMax whatever the method: for these, ONNX Runtime's quantizer uses both values unchanged.

        Raises:
            StageError: when the calibration did not run this method.
        """
        if method not in self.methods:
            raise StageError(f"no ranges of method {method!r}; available: {', '.join(sorted(self.methods))}")
        data = {
            tensor: TensorData(lowest=np.array(lowest, np.float32), highest=np.array(highest, np.float32))
            for tensor, (lowest, highest) in self.methods[method].items()
        }
        save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), path)
        return path
