"""Memory that a training step freed serves the next one."""

import json
import subprocess
import sys

import pytest

STEPS = """
import json, resource
import psutil, torch
from frameworks.torch.training_loop import freed_memory_kept
from frameworks.torch.segmenter import segmentation_loss
from frameworks.torch.segmenter import SegmenterSpec

network = SegmenterSpec(channels=3, classes=11).build()
images, truth = torch.zeros(16, 3, 96, 96), torch.zeros(16, 96, 96, dtype=torch.int64)

def page_faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        segmentation_loss(network(images), truth).backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps

page_faults(3)
told = {"usual": page_faults(8)}
with freed_memory_kept():
    page_faults(3)
    told["kept"] = page_faults(8)
    resident = psutil.Process().memory_info().rss
told["returned_mb"] = (resident - psutil.Process().memory_info().rss) / 1e6
print(json.dumps(told))
"""


@pytest.mark.nightly
def test_memory_that_a_step_freed_serves_the_next_one_and_is_returned_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["kept"] < told["usual"] / 2, told
    assert told["returned_mb"] > 50, told
