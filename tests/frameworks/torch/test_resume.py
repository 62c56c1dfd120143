"""An interrupted training ends at the same weights, and its memory is freed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gauntlet.core.artifact import Artifact, Store
from gauntlet.datasets.splits import Dataset

EPOCHS = 6
SCRIPT = """
import json, logging, sys
from pathlib import Path
from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace

class Tell(logging.Handler):
    def emit(self, record):
        if record.unit == "epoch":
            print(record.done, flush=True)

logging.getLogger("gauntlet.progress").setLevel(logging.INFO)
logging.getLogger("gauntlet.progress").addHandler(Tell())
settings = json.loads(sys.argv[1])
from tasks.train import train
from frameworks.torch.classifier_training import TorchTraining
splits = {name: Artifact(**artifact) for name, artifact in settings["splits"].items()}
out = Workspace(Store(Path(settings["store"])), Path(settings["folder"]))
out.folder.mkdir(exist_ok=True)
config = TorchTraining(architecture="small-cnn", epochs=settings["epochs"], batch_size=16, learning_rate=0.01)
report = train(config, out, splits=splits, signature=Signature(**settings["signature"]))
print(report.artifacts["model"].sha256)
"""


@pytest.fixture
def start(digits: Dataset, small, tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Return a function that starts the training in a folder; it logs each epoch, then the digest."""
    splits: dict[str, Artifact] = small()
    settings = {
        "splits": {name: artifact.model_dump() for name, artifact in splits.items()},
        "store": str(Store(tmp_path / "store").root),
        "signature": digits.signature.model_dump(),
        "epochs": EPOCHS,
    }

    def run(folder: str) -> subprocess.Popen[str]:
        arguments = json.dumps(settings | {"folder": str(tmp_path / folder)})
        return subprocess.Popen([sys.executable, "-c", SCRIPT, arguments], stdout=subprocess.PIPE, text=True)

    return run


def finish(process: subprocess.Popen[str]) -> tuple[list[int], str]:
    """Return the epochs that the process did, and the digest of its weights."""
    *epochs, digest = process.communicate(timeout=120)[0].split()
    assert process.returncode == 0
    return [int(epoch) for epoch in epochs], digest


def killed_after(process: subprocess.Popen[str], epoch: int) -> list[int]:
    """Kill the process as soon as it has logged that epoch; return the epochs that it did."""
    done: list[int] = []
    while not done or done[-1] < epoch:
        done.append(int(process.stdout.readline()))
    process.kill()
    done += [int(word) for word in process.communicate()[0].split() if len(word) < 3]
    assert process.returncode == -9
    return done


@pytest.mark.nightly
def test_train_goes_on_and_ends_at_the_same_weights_when_killed_twice(start, tmp_path: Path) -> None:
    uninterrupted, expected = finish(start("whole"))
    first = killed_after(start("killed"), 2)
    second = killed_after(start("killed"), first[-1] + 1)
    (tmp_path / "killed" / "checkpoint.tmp").write_bytes(b"half a checkpoint, as a kill may leave it")
    third, digest = finish(start("killed"))
    assert first + second + third == uninterrupted == list(range(1, EPOCHS + 1))  # none is missing, none done twice
    assert digest == expected


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
