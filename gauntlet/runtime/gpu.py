"""Whether this machine has an NVIDIA GPU, without loading a framework."""

import ctypes
from functools import lru_cache

DRIVERS = ("libcuda.so.1", "nvcuda.dll")


@lru_cache
def has_gpu() -> bool:
    """Return whether the driver shows a GPU to this process; `CUDA_VISIBLE_DEVICES` may hide all of them."""
    for name in DRIVERS:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    return False
