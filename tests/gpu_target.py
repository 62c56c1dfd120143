"""A target of a GPU, for tests that need none: its session gets CUDA's provider, or the CPU where that cannot load."""

from typing import ClassVar, Literal

from gauntlet.targets.ort import OrtTarget


class GpuTarget(OrtTarget):
    """ONNX Runtime's provider for NVIDIA's GPUs."""

    kind: Literal["gpu"] = "gpu"
    provider: ClassVar[str] = "CUDAExecutionProvider"
    device: ClassVar[str | None] = "cuda"


class TensorRtTarget(GpuTarget):
    """Its provider for NVIDIA's TensorRT."""

    provider: ClassVar[str] = "TensorrtExecutionProvider"
