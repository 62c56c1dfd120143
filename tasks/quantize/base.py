"""What every quantization recipe has."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar

from gauntlet.calibration.ranges import Ranges
from gauntlet.core.frozen import Kind
from tasks.quantize.left_out import LeftOut


class Recipe(Kind, ABC):
    """A kind of `quantize`."""

    takes_fused_attention: ClassVar[bool] = False
    """Whether it leaves ONNX Runtime's own operators as they are."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The candidate's name."""

    @abstractmethod
    def quantize(
        self, model: Path, prepared: Path | None, ranges: Ranges | None, target: Path, float_nodes: Collection[str] = ()
    ) -> LeftOut:
        """Write the quantized model to `target`; return the nodes that it could not take, and why.

        `prepared` is the calibrated model and `ranges` its activations', None without calibration; `float_nodes` are
        to stay in floating point.
        """
