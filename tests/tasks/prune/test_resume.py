"""Fine-tuning that is killed goes on where it was, and ends at the same weights. Every process is a real one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gauntlet.core.artifact import Store

EPOCHS = 5
SCRIPT = """
import json, logging, sys
from pathlib import Path
from pydantic import TypeAdapter
from gauntlet.core.artifact import Artifact, Store
from tasks.prune import PruneConfig, prune
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace

class Tell(logging.Handler):
    def emit(self, record):
        if record.unit == "epoch":
            print(record.done, flush=True)

logging.getLogger("gauntlet.progress").setLevel(logging.INFO)
logging.getLogger("gauntlet.progress").addHandler(Tell())
settings = json.loads(sys.argv[1])
out = Workspace(Store(Path(settings["store"])), Path(settings["folder"]))
out.folder.mkdir(exist_ok=True)
report = prune(
    TypeAdapter(PruneConfig).validate_python(settings["config"]),
    out,
    network=Artifact(**settings["network"]),
    signature=Signature(**settings["signature"]),
    golden=Artifact(**settings["golden"]),
    splits={name: Artifact(**artifact) for name, artifact in settings["splits"].items()},
)
print(report.artifacts["network"].sha256)
"""
CONFIGS = [{"kind": "structured", "macs_fraction": 0.5, "round_to": 8}, {"kind": "unstructured", "sparsity": 0.8}]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c["kind"])
def test_pruning_goes_on_and_ends_at_the_same_weights_when_killed(learned, tmp_path: Path, config) -> None:
    config = {"epochs": EPOCHS, "learning_rate": 0.01, "batch_size": 16, **config}
    settings = {
        "config": config,
        "store": str(Store(learned.store.root).root),
        "network": learned.train.artifacts["model"].model_dump(),
        "golden": learned.golden.model_dump(),
        "signature": learned.train.facts.signature.model_dump(),
        "splits": {name: artifact.model_dump() for name, artifact in learned.splits.items()},
    }

    def start(name: str) -> subprocess.Popen[str]:
        arguments = json.dumps(settings | {"folder": str(tmp_path / name)})
        return subprocess.Popen([sys.executable, "-c", SCRIPT, arguments], stdout=subprocess.PIPE, text=True)

    process, first = start("killed"), []
    while not first or first[-1] < 2:
        first.append(int(process.stdout.readline()))
    process.kill()
    first += [int(word) for word in process.communicate()[0].split() if len(word) < 3]
    assert process.returncode == -9
    *second, digest = start("killed").communicate(timeout=120)[0].split()
    assert first + [int(epoch) for epoch in second] == list(range(1, EPOCHS + 1))  # none missing, none twice
    *_, whole = start("whole").communicate(timeout=120)[0].split()
    assert digest == whole
