import resource

import psutil
import torch

from gauntlet.frameworks.torch.freed_memory import freed_memory_kept

FLOATS = 12 << 20
SIZE_BYTES = 4 * FLOATS


def page_faults_of_a_large_tensor() -> int:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    torch.ones(FLOATS)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_memory_of_a_freed_tensor_is_used_again_and_returned_at_the_end() -> None:
    pages = SIZE_BYTES // resource.getpagesize()
    with freed_memory_kept():
        page_faults_of_a_large_tensor()
        assert page_faults_of_a_large_tensor() < pages / 100
        kept = psutil.Process().memory_info().rss
    assert psutil.Process().memory_info().rss < kept - SIZE_BYTES / 2
    page_faults_of_a_large_tensor()
    assert page_faults_of_a_large_tensor() > pages / 100
