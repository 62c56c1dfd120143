"""Half precision: half the model size; faster only on hardware with float16 arithmetic, which few CPUs have."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Literal

from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.transformers.float16 import convert_float_to_float16

from gauntlet.calibration.ranges import Ranges
from gauntlet.core.errors import StageError
from gauntlet.onnx_model.model_file import read_model, write_model
from gauntlet.onnx_model.normalization.order import sort_nodes
from tasks.quantize.base import Recipe
from tasks.quantize.left_out import LeftOut


class Float16(Recipe):
    """Weights and activations in float16; inputs and outputs keep their types."""

    kind: Literal["float16"] = "float16"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return "float16"

    def quantize(
        self, model: Path, prepared: Path | None, ranges: Ranges | None, target: Path, float_nodes: Collection[str] = ()
    ) -> LeftOut:
        """Convert `model` to `target`, without leaving anything out; `prepared` and `ranges` are not used."""
        excluded = sorted(float_nodes) or None
        half = ONNXModel(convert_float_to_float16(read_model(model), keep_io_types=True, node_block_list=excluded))
        with suppress(StageError):  # sparse weights; the gate `structure` notices an unsorted file
            sort_nodes(half.model)  # the converter appends its Cast nodes at the end
        write_model(half.model, target)
        return {}
