"""`gauntlet bundle` writes a bundle for browsers and devices."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.errors import ConfigError
from wings.devices.deliveries import edge, trainable, web


@pytest.fixture
def bundle(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """The bundle of a trained model, in a home without environments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / ".gauntlet"))
    return Bundle.open(packed)


def run(*command: str) -> list[str]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_device_gets_files_that_prove_themselves(bundle: Bundle) -> None:
    lines = edge(bundle, Path("device"))
    assert re.fullmatch(r"device: model\.ort, .*, \d+ operators", lines[0])
    run("device/example.py")
    with pytest.raises(ConfigError, match=r"device: it exists. Fix: remove it, or choose another --edge"):
        edge(bundle, Path("device"))


def test_page_needs_the_runtime_for_browsers_and_says_how_to_install_it(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match=r"--web: its environment is not installed; .*: gauntlet targets install web"):
        web(bundle, Path("page"))
    assert not Path("page").exists()


def test_model_can_be_taught_new_labels(bundle: Bundle) -> None:
    assert re.match(r"learn: training_step\.onnx, 10 classes of \d+ features", trainable(bundle, Path("learn"))[0])
    inputs, outputs = bundle.golden().inputs, bundle.golden().outputs[bundle.contract.signature.primary_output or ""]
    np.savez("samples.npz", **inputs, labels=(outputs.argmax(1) + 1) % 10)
    losses = [float(line.rpartition(" ")[2]) for line in run("learn/example.py", "samples.npz", "5", "0.01")[:-1]]
    assert losses[-1] < losses[0]
