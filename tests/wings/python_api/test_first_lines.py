"""The first three lines of the guide on bringing a model, run as they stand."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "bring-a-model.md"
LINES = [line for line in PAGE.read_text().splitlines() if line.startswith(".venv/bin/gauntlet run ")]
QUICK = ("quantize=[]", "optimize=[]", "benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.batch_sizes=[1]")
SAMPLES = """
import numpy as np
x = np.random.default_rng(0).random((90, 4), np.float32)
"""
WRITE = {
    "skops": """
import pandas, skops.io, sklearn.linear_model
table, y = pandas.DataFrame(x, columns=list("abcd")), x[:, :3].argmax(1)
skops.io.dump(sklearn.linear_model.LogisticRegression().fit(table, y), "iris.skops")
table.assign(target=y).to_csv("iris.csv", index=False)
""",
    "tensorflow": """
from frameworks.keras.tensorflow_setup import start_tensorflow
keras = start_tensorflow()
keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")]).save("network.keras")
np.save("x.npy", x)
""",
    "torch": """
import pathlib, torch
network, rows = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(1)).eval(), torch.export.Dim("rows")
program = torch.export.export(network, (torch.from_numpy(x[:2]),), dynamic_shapes=({0: rows},))
torch.export.save(program, "model.pt2")
np.save("x.npy", x)
loader = "import numpy\\ndef samples():\\n    yield from numpy.split(numpy.load('x.npy'), 9)\\n"
pathlib.Path("loader.py").write_text(loader.replace("x.npy", str(pathlib.Path("x.npy").resolve())))
""",
}
RUN = "import sys; from flows.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.nightly
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(("line", "package"), zip(LINES[:3], WRITE, strict=True), ids=[*WRITE])
def test_line_of_the_guide_ends_with_a_winner(tmp_path: Path, line: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    own = {"GAUNTLET_HOME": str(tmp_path / "home"), "GAUNTLET_HOST_LOCK": str(tmp_path / "lock"), "COLUMNS": "200"}
    quick = [word for value in QUICK for word in ("--set", value)]
    words = line.partition("#")[0].split()[1:]
    for command in ([SAMPLES + WRITE[package]], [RUN, *words, *quick]):
        call = [sys.executable, "-c", *command]
        done = subprocess.run(call, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Winner: " in done.stdout
