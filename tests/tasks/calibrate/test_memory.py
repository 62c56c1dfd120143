"""The calibrator's peak memory, in processes of their own: it does not know how many images there are."""

import subprocess
import sys
from pathlib import Path

import onnx
import onnx_text
import pytest

# 16 channels of 160 x 160: each of the two activations takes 1.6 MB an image.
SIDE, CHANNELS = 160, 16
SCRIPT = """
import sys
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from gauntlet.core.artifact import Store
from gauntlet.calibration.activation_statistics import collect_statistics, open_calibrator
from gauntlet.core.workspace import Workspace

@dataclass(frozen=True)
class Images:
    count: int
    labels: None = None
    def __len__(self):
        return self.count
    def take(self, indices):
        numbers = range(self.count)[indices]
        return {"x": np.stack([np.random.default_rng(n).standard_normal((3, SIDE, SIDE), np.float32) for n in numbers])}

model = Path(sys.argv[1])
out = Workspace(Store(model.parent), model.parent)
seen = collect_statistics(out, open_calibrator(model, model.parent), Images(int(sys.argv[2])), 10**6, with_counts=True)
assert all(one.histogram is not None for one in seen.after[int(sys.argv[2])].values())
status = Path("/proc/self/status").read_text()
print(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024)
"""


def peak_mb(model: Path, images: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("SIDE", str(SIDE)), model, str(images)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


@pytest.mark.nightly
def test_peak_memory_is_the_same_when_there_are_ten_times_as_many_images(tmp_path: Path) -> None:
    text = f"""
        wide (float[n,3,{SIDE},{SIDE}] x) => (float[n,{CHANNELS},{SIDE},{SIDE}] y)
        <float[{CHANNELS},3,3,3] w>
        {{
            [conv] c = Conv<pads = [1, 1, 1, 1]>(x, w)
            [relu] y = Relu(c)
        }}
    """
    onnx.save(onnx_text.model(text, opset=17), tmp_path / "wide.onnx")
    few, many = peak_mb(tmp_path / "wide.onnx", 32), peak_mb(tmp_path / "wide.onnx", 320)
    activations_mb = 288 * 2 * CHANNELS * SIDE * SIDE * 4 / 1e6  # of the other images, which ORT would keep
    assert activations_mb > 900
    assert many - few < 60
