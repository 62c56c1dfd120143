"""Memory of a training on the CPU, kept from step to step."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt(3)."""
KEPT = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**27}
"""In bytes. Blocks above 32 MB, the most that glibc allows, are returned all the same."""
USUAL = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26, TOP_PAD: 2**17}
"""The bytes up to which glibc raises its thresholds by itself."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Have the C library keep freed memory inside, and return it to the kernel at the end.

    By default glibc returns what is free above 64 MB, so each step asks the kernel for its activations and gradients
    anew, page by page. No effect where the C library is another one.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    for parameter, size in KEPT.items():
        library.mallopt(parameter, size)
    try:
        yield
    finally:
        for parameter, size in USUAL.items():
            library.mallopt(parameter, size)
        library.malloc_trim(0)
