"""Where PyTorch trains: on an NVIDIA GPU or on the CPU, with float32 arithmetic on either."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gauntlet.core.errors import StageError
from gauntlet.frameworks.training import Device

if TYPE_CHECKING:
    import torch


def training_device(choice: Device) -> "torch.device":
    """Return the device to train on; raise StageError if `cuda` is asked for and PyTorch finds no GPU."""
    import torch

    has_gpu = choice != "cpu" and torch.cuda.is_available()
    if choice == "cuda" and not has_gpu:
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        raise StageError(
            f"device: cuda, but PyTorch {torch.__version__}, which {built}, finds no GPU here. "
            "Fix: set device to auto or cpu, or check the driver with nvidia-smi"
        )
    return torch.device("cuda" if has_gpu else "cpu")


@contextmanager
def float32_kernels() -> Iterator[None]:
    """Have cuDNN compute in float32, not TF32, and with the same kernels in each run; no effect on a CPU."""
    import torch

    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
