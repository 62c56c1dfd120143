"""OnnxSlim: pattern-based simplification."""

from typing import Literal

import onnx

from tasks.optimize.in_memory_pass import InMemoryPass


class OnnxSlim(InMemoryPass):
    """`onnxslim.slim`."""

    kind: Literal["onnxslim"] = "onnxslim"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the slimmed model."""
        import onnxslim

        return onnxslim.slim(proto)  # type: ignore[no-any-return]
