"""The ranges of a model's activations: found once by the calibration, read by every static recipe."""

from pathlib import Path
from typing import Annotated

import numpy as np
from onnxruntime.quantization import CalibrationMethod
from onnxruntime.quantization.calibrate import TensorData, TensorsData, save_tensors_data
from pydantic import Field, ValidationError

from gauntlet.calibration.entropy import Entropy
from gauntlet.calibration.minmax import MinMax
from gauntlet.calibration.percentile import Percentile
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number

Method = Annotated[MinMax | Entropy | Percentile, Field(discriminator="kind")]


class Ranges(Frozen):
    """The lowest and the highest value of every activation, as each method sees it.

    The values are float32; Python's floats, and so JSON, hold them exactly.
    """

    images: int = Field(ge=1, description="samples that the statistics are of")
    methods: dict[str, dict[str, tuple[Number, Number]]] = Field(
        description="by the method's name, by the tensor's name in the prepared model: lowest and highest value"
    )

    @classmethod
    def read(cls, path: Path) -> "Ranges":
        """Read the calibration's artifact.

        Raises:
            StageError: when the file is missing or damaged.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise StageError(f"{path}: not a file of ranges that the calibration wrote ({error})") from error

    def write(self, path: Path) -> Path:
        """Write the artifact, and return its path."""
        path.write_text(self.model_dump_json(), encoding="utf-8")
        return path

    def write_for_ort(self, method: str, path: Path) -> Path:
        """Write one method's ranges as the calibration cache that `quantize_static` reads; return its path.

        To ONNX Runtime they are MinMax ranges whatever found them: its quantiser takes the two values as they are.

        Raises:
            StageError: when the calibration was not asked for this method.
        """
        if method not in self.methods:
            raise StageError(f"there are no {method} ranges; the calibration made {', '.join(sorted(self.methods))}")
        data = {
            tensor: TensorData(lowest=np.array(lowest, np.float32), highest=np.array(highest, np.float32))
            for tensor, (lowest, highest) in self.methods[method].items()
        }
        save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), path)
        return path
