"""Half precision: half the size at once. Fast where the processor computes in it, which few CPUs do."""

from pathlib import Path
from typing import Literal

from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.transformers.float16 import convert_float_to_float16

from tasks.frozen import Frozen
from tasks.model_file import read_model, write_model
from tasks.ranges import Ranges


class Float16(Frozen):
    """Weights and activations in 16-bit floats; inputs and outputs stay as they are."""

    kind: Literal["float16"] = "float16"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return "float16"

    def write(
        self,
        model: Path,
        prepared: Path | None,
        ranges: Ranges | None,
        target: Path,
        *,
        float_nodes: frozenset[str] = frozenset(),
    ) -> None:
        """Convert `model` to `target`; neither ranges nor a prepared model are needed."""
        half = convert_float_to_float16(
            read_model(model), keep_io_types=True, node_block_list=sorted(float_nodes) or None
        )
        ordered = ONNXModel(half)
        ordered.topological_sort()  # the converter puts its casts last
        write_model(ordered.model, target)
