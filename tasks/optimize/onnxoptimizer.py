"""onnxoptimizer: the ONNX project's fusion and elimination passes, all or some by name."""

from typing import ClassVar, Literal

import onnx
from pydantic import Field

from tasks.optimize.in_memory_pass import PassGroup


class OnnxOptimizer(PassGroup):
    """`onnxoptimizer.optimize`, repeated until nothing changes."""

    kind: Literal["onnxoptimizer"] = "onnxoptimizer"
    passes: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of passes; by default all fusion and elimination passes"
    )
    parts: ClassVar[str] = "passes"

    def default_parts(self) -> tuple[str, ...]:
        """Return the names of all fusion and elimination passes."""
        import onnxoptimizer

        return tuple(onnxoptimizer.get_fuse_and_elimination_passes())

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the optimized model."""
        import onnxoptimizer

        passes = self.chosen(onnxoptimizer.get_available_passes())
        return onnxoptimizer.optimize(proto, passes, fixed_point=True)  # type: ignore[no-any-return]
