"""Users' own PyTorch networks, as files: sound ones, and ones that an exporter gets wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from tasks.train import train
from tasks.train.facts import TrainFacts

TorchModel = pytest.importorskip("frameworks.torch.brought_network").TorchModel

SIZE, CLASSES = 16, 4
SIGNATURE = Signature(
    inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 3, SIZE, SIZE)),),
    outputs=(),
    labels=tuple("abcd"),
)


NETWORK = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.act = nn.ReLU()
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        features = self.act(self.conv(x))
        {body}


def make(**arguments):
    return Net(**arguments)
"""
NEGPOS = """
import torch
from torch import nn


@torch.library.custom_op("gauntlet_test::negpos", mutates_args=())
def negpos(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.clamp(x, max=0), torch.clamp(x, min=0)


@negpos.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        negative, positive = torch.ops.gauntlet_test.negpos(self.conv(x))
        return self.head((positive + 0.1 * negative).mean((2, 3)))


def make():
    torch.manual_seed(0)
    return Net()


def symbolics():
    return {"gauntlet_test::negpos": lambda g, x: g.op("ai.onnx.contrib::NegPos", x, outputs=2)}


def translations():
    import onnx
    import onnxscript

    if not onnx.defs.has("NegPos", "ai.onnx.contrib"):
        parameter = onnx.defs.OpSchema.FormalParameter
        schema = onnx.defs.OpSchema(
            "NegPos",
            "ai.onnx.contrib",
            1,
            inputs=[parameter("x", "T")],
            outputs=[parameter("negative", "T"), parameter("positive", "T")],
            type_constraints=[("T", ["tensor(float)"], "")],
        )
        onnx.defs.register_schema(schema)
    contrib = onnxscript.values.Opset("ai.onnx.contrib", 1)
    return {torch.ops.gauntlet_test.negpos.default: lambda x: contrib.NegPos(x)}
"""
"""NegPos, of onnxruntime-extensions, parts a tensor into its negative and its positive values."""
SOUND = "return self.head(features.mean((2, 3)))"
BODIES = {
    "sound": SOUND,
    # Python's int() of a shape: TorchScript writes down the number that it saw.
    "size_as_number": "return self.head(features.mean((2, 3))) * int(x.shape[3]) / 16",
    # A loop over a shape: both exporters unroll it, and neither says so.
    "loop_over_size": (
        "strips = [features[..., 8 * i : 8 * i + 8].mean((2, 3)) for i in range(x.shape[3] // 8)]\n"
        "        return self.head(sum(strips) / len(strips))"
    ),
    # Python's `if` on a value: TorchScript keeps the branch that it saw, dynamo refuses.
    "branch_on_values": "scores = self.head(features.mean((2, 3)))\n        return scores if x.mean() > 0 else -scores",
    # Outputs in a tuple in a tuple, the first of them twice.
    "nested": "scores = self.head(features.mean((2, 3)))\n        return (scores, features.mean((2, 3))), scores",
    "states": "return self.head(features.mean((2, 3))), (features.mean(0, keepdim=True),)",
    # Made for 16x16 pixels; others end up in other samples.
    "one_size": "return self.head(features.reshape(-1, 5, 256).mean(2))",
}


def write_network(folder: Path, body: str, module: str = "nets", more: str = "", **arguments: int) -> Path:
    """Write the network to a module in the folder, with random weights beside it; return the weights."""
    import torch

    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(NETWORK.replace("{body}", body) + more)
    made: dict[str, Callable[..., torch.nn.Module]] = {}
    exec(NETWORK.replace("{body}", SOUND), made)
    torch.manual_seed(0)
    weights = folder / "weights.pt"
    torch.save(made["make"](**arguments).state_dict(), weights)
    return weights


def splits(
    out: Workspace, change: Callable[[np.ndarray], np.ndarray] = lambda pictures: pictures
) -> dict[str, Artifact]:
    """Store random pictures: a test and a calibration split."""
    rng = np.random.default_rng(0)
    kept = {}
    for name in ("test", "calibration"):
        pictures = change(rng.standard_normal((40, 3, SIZE, SIZE)).astype(np.float32))
        split = ArraySplit({"input": pictures}, rng.integers(0, CLASSES, 40))
        kept[name] = out.store_file(split.save(out.folder, name))
    return kept


def bring(out: Workspace, folder: Path, body: str, **config: object) -> Report[TrainFacts]:
    """Bring the network of that name in BODIES; the data is random pictures of 16x16."""
    weights = write_network(folder, BODIES[body])
    told = {"factory": "nets:make", "code_folder": folder, "weights": weights} | config
    return train(TorchModel.model_validate(told), out, splits=splits(out), signature=SIGNATURE)
