"""A network that was trained elsewhere: taken as it is, or refused with one sentence."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch_networks import SIGNATURE, SOUND, bring, splits, write_network

from frameworks.torch import network as torch_network
from frameworks.torch.brought_network import TorchModel
from frameworks.torch.dynamo import Dynamo
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit
from tasks.export import export
from tasks.numerics import NumericsConfig, numerics
from tasks.structure import StructureConfig, structure
from tasks.train import train

Make = Callable[..., Workspace]


def test_network_answers_as_its_maker_when_it_is_brought(take, tmp_path: Path, workspace: Make) -> None:
    report = take()
    out = workspace()
    golden = Golden.load(out.path(report.artifacts["golden"]))
    network, example = torch_network.load_network(out.path(report.artifacts["model"]), trust=True)
    with torch.inference_mode():
        expected = network(torch.from_numpy(golden.real.inputs["input"])).numpy()
    assert np.array_equal(golden.real.outputs["logits"], expected)
    weights = torch.load(tmp_path / "user" / "weights.pt", weights_only=True)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in network.state_dict().items())
    assert example["input"].shape == (2, 3, 16, 16)
    assert golden.module_outputs.keys() == {"conv", "act", "head"}
    assert report.facts.signature.outputs == (TensorSpec(name="logits", dtype="float32", shape=("batch", 4)),)
    assert (report.facts.signature.primary_output, report.facts.architecture) == ("logits", "nets:make")
    with np.load(out.path(report.artifacts["predictions"])) as file:
        assert np.array_equal(file["test"], golden.test_outputs["logits"].argmax(1))
        assert np.array_equal(file["test_scores"], golden.test_outputs["logits"])


def test_network_is_made_with_the_arguments_when_there_are_some(take) -> None:
    with pytest.raises(StageError, match=r"of another shape: conv.weight \[5, 3, 3, 3\] for \[9, 3, 3, 3\]"):
        take(arguments={"width": 9})
    with pytest.raises(StageError, match=r"nets:make fails with the arguments {'depth': 9}: TypeError"):
        take(arguments={"depth": 9})


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("absent_nets:make", r"absent_nets cannot be imported: ModuleNotFoundError.*no such file in the folder"),
        ("nets:absent", "nets has no function 'absent'"),
        ("nets:torch", "nets has no function 'torch'"),
        ("json:dumps", "json:dumps fails with the arguments {}: TypeError"),
        ("builtins:dict", "builtins:dict returns dict; expected a torch.nn.Module"),
    ],
)
def test_factory_is_refused_when_it_is_none(take, factory: str, message: str) -> None:
    with pytest.raises(StageError, match=message):
        take(factory=factory)


@pytest.mark.parametrize("factory", ["nets", "nets:", ":make", "nets.py:make:x", "nets/a:make", "9:make"])
def test_factory_is_refused_before_the_run_when_its_form_is_wrong(factory: str) -> None:
    with pytest.raises(ValidationError, match="factory"):
        TorchModel(factory=factory, weights=Path("w.pt"))


def test_factory_of_an_installed_package_is_called_with_weights_that_lack_its_layers_versions(
    workspace: Make, tmp_path: Path
) -> None:
    from torchvision.models import mnasnet0_5

    save_file(mnasnet0_5(num_classes=4).state_dict(), tmp_path / "w.safetensors")
    config = TorchModel(
        factory="torchvision.models:mnasnet0_5", arguments={"num_classes": 4}, weights=tmp_path / "w.safetensors"
    )
    assert [path.name for path in config.files()] == ["w.safetensors", "METADATA"]
    out = workspace()
    signature = SIGNATURE.replace(inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 3, 32, 32)),))
    data = splits(out, lambda pictures: pictures.repeat(2, 2).repeat(2, 3))
    report = train(config, out, splits=data, signature=signature)
    assert report.facts.signature.outputs[0].shape == ("batch", 4)


def test_files_are_all_that_the_factory_imports_when_they_lie_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "pack" / "deep").mkdir(parents=True)
    files = {
        "nets.py": "import torch\nfrom pack import blocks\nimport side",
        "side.py": "import nets",
        "unused.py": "",
        "pack/__init__.py": "",
        "pack/blocks.py": "from .deep import layer as l\nfrom . import norms",
        "pack/norms.py": "def broken(:",
        "pack/deep/__init__.py": "from ..heads import head",
        "pack/deep/layer.py": "",
        "pack/heads.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    config = TorchModel(factory="nets:make", code_folder=tmp_path, weights=tmp_path / "w.pt")
    found = {path.relative_to(tmp_path).as_posix() for path in config.files() if path.name != "METADATA"}
    assert found == {"w.pt", *files} - {"unused.py"}


def test_factory_is_the_new_one_when_its_file_has_changed(workspace: Make, tmp_path: Path) -> None:
    first = bring(workspace(), tmp_path / "first", "sound")
    other = bring(workspace(), tmp_path / "second", "size_as_number", input_sizes=[(24, 24)])
    again = bring(workspace(), tmp_path / "third", "sound")
    assert first.artifacts["golden"] == again.artifacts["golden"] != other.artifacts["golden"]
    assert [name for name in sys.modules if name == "nets"] == ["nets"]


@pytest.mark.parametrize(("file", "code"), [("tasks.py", "import tasks"), ("tasks/blocks.py", "import tasks.blocks")])
def test_factory_is_refused_when_it_imports_what_has_the_name_of_one_of_ours(
    tmp_path: Path, workspace: Make, file: str, code: str
) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / file).write_text("")
    (tmp_path / "nets.py").write_text(f"{code}\ndef make(): pass")
    config = TorchModel(factory="nets:make", code_folder=tmp_path, weights=tmp_path / "w.pt")
    with pytest.raises(StageError, match=rf"{file}: the name 'tasks' is taken by a module of this program; rename it"):
        train(config, workspace(), splits=splits(workspace()), signature=SIGNATURE)


READS = """
import importlib, json
from pathlib import Path

def make(**arguments):
    importlib.import_module("other_blocks")
    width = json.loads((Path(__file__).parent / "sizes.json").read_text())["width"]
    return Net(width)
"""


def test_files_that_the_factory_names_travel_with_it(tmp_path: Path, workspace: Make) -> None:
    weights = write_network(tmp_path / "user", SOUND, more=READS)
    (tmp_path / "user" / "sizes.json").write_text('{"width": 5}')
    (tmp_path / "user" / "other_blocks.py").write_text("")
    config = TorchModel(factory="nets:make", code_folder=tmp_path / "user", weights=weights)
    assert {"sizes.json", "other_blocks.py"} <= {path.name for path in config.files()}
    report = train(config, workspace(), splits=splits(workspace()), signature=SIGNATURE)
    for file in (tmp_path / "user").iterdir():
        file.unlink()
    torch_network.load_network(workspace().path(report.artifacts["model"]), trust=True)


def test_factory_that_reads_another_file_is_refused_with_the_way_out(tmp_path: Path, workspace: Make) -> None:
    reads = READS.replace('"sizes.json"', '("sizes" + ".json")').replace("importlib.import_module", "")
    weights = write_network(tmp_path / "user", SOUND, more=reads)
    (tmp_path / "user" / "sizes.json").write_text('{"width": 5}')
    config = TorchModel(factory="nets:make", code_folder=tmp_path / "user", weights=weights)
    with pytest.raises(StageError, match=r"sizes\.json'\. Fix: name a text file in one string, and open it beside"):
        train(config, workspace(), splits=splits(workspace()), signature=SIGNATURE)


@pytest.mark.parametrize(
    ("body", "more", "message"),
    [
        ("return {'loss': x.mean(), 'scores': features.mean((2, 3))}", "", "'loss', one number .* Fix: leave it out"),
        ("return {0: features.mean((2, 3))}", "", "the key 0. Fix: make it a text"),
        (
            SOUND,
            "\ndef make(): return Net().half()",
            r"weights of float16 \(conv.weight\).*Fix: build it without .half",
        ),
    ],
    ids=["scalar", "number as key", "half"],
)
def test_network_is_refused_by_the_name_of_what_cannot_be_exported(
    tmp_path: Path, workspace: Make, body: str, more: str, message: str
) -> None:
    weights = write_network(tmp_path / "user", body, more=more)
    config = TorchModel(factory="nets:make", code_folder=tmp_path / "user", weights=weights)
    with pytest.raises(StageError, match=message):
        train(config, workspace(), splits=splits(workspace()), signature=SIGNATURE)


def test_network_is_refused_when_it_fails_on_the_data(tmp_path: Path, workspace: Make) -> None:
    out = workspace()
    config = TorchModel(factory="nets:make", code_folder=tmp_path, weights=write_network(tmp_path, SOUND))
    signature = SIGNATURE.replace(inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 2, 16, 16)),))
    with pytest.raises(StageError, match=r"nets:make fails on the data, \['float32\[2, 2, 16, 16\]'\]: .*channels"):
        train(config, out, splits=splits(out, lambda pictures: pictures[:, :2]), signature=signature)


def test_sizes_make_both_axes_dynamic_when_the_network_takes_them(take, workspace: Make) -> None:
    report = take(input_sizes=[(24, 20), (16, 40)])
    golden = Golden.load(workspace().path(report.artifacts["golden"]))
    assert list(golden.cases) == ["real", "random", "24x20", "16x40"]
    assert golden.cases["24x20"].inputs["input"].shape == (16, 3, 24, 20)
    assert report.facts.signature.inputs[0].shape == ("batch", 3, "height", "width")


def test_sizes_are_refused_when_the_network_does_not_take_them(tmp_path: Path, workspace: Make) -> None:
    assert bring(workspace(), tmp_path / "fixed", "one_size").facts.signature.inputs[0].shape == ("batch", 3, 16, 16)
    with pytest.raises(StageError, match=r"nets:make: output 'logits' is \(30, 4\) for 16 samples"):
        bring(workspace(), tmp_path / "fixed", "one_size", input_sizes=[(24, 20)])


TWO_INPUTS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens, scale):
        found = self.words(tokens).mean(1) * scale
        return {"features": found, "scores": self.head(found), "names": ["a"]}


def make():
    return Net()
"""


def test_network_keeps_names_and_types_when_it_has_several_inputs_and_outputs(tmp_path: Path, workspace: Make) -> None:
    (tmp_path / "words.py").write_text(TWO_INPUTS)
    made: dict[str, Callable[[], torch.nn.Module]] = {}
    exec(TWO_INPUTS, made)
    torch.save(made["make"]().state_dict(), tmp_path / "w.pt")
    rng, out = np.random.default_rng(0), workspace()
    inputs = {"tokens": rng.integers(0, 20, (30, 7)), "scale": rng.standard_normal((30, 1))}
    test = out.store_file(ArraySplit(inputs, rng.integers(0, 3, 30)).save(out.folder, "test"))
    specs = tuple(
        TensorSpec(name=name, dtype=array.dtype.name, shape=("batch", *array.shape[1:]))
        for name, array in inputs.items()
    )
    signature = Signature(inputs=specs, outputs=(), layout="none", labels=("a", "b", "c"))
    config = {"factory": "words:make", "code_folder": tmp_path, "weights": tmp_path / "w.pt"}
    report = train(TorchModel.model_validate(config), out, splits={"test": test}, signature=signature)
    found = report.facts.signature
    assert [(t.name, t.dtype, t.shape) for t in found.inputs] == [
        ("tokens", "int64", ("batch", 7)),
        ("scale", "float32", ("batch", 1)),
    ]
    assert [(t.name, t.shape) for t in found.outputs] == [("features", ("batch", 6)), ("scores", ("batch", 3))]
    assert report.facts.signature.primary_output == "scores"  # the other one has more columns than there are labels
    named = config | {"outputs": ["f", "s"], "primary_output": "s"}
    report = train(TorchModel.model_validate(named), workspace(), splits={"test": test}, signature=signature)
    assert ([t.name for t in report.facts.signature.outputs], report.facts.signature.primary_output) == (
        ["f", "s"],
        "s",
    )
    for wrong, message in (
        ({"outputs": ["f"]}, "names 1 outputs; the network returns 2"),
        ({"primary_output": "x"}, "no output 'x'"),
    ):
        with pytest.raises(StageError, match=message):
            train(TorchModel.model_validate(config | wrong), workspace(), splits={"test": test}, signature=signature)


@pytest.mark.parametrize("exporter", [TorchScript(), Dynamo()], ids=lambda each: each.kind)
def test_nested_outputs_pass_the_gates_under_names_of_their_own(
    tmp_path: Path, workspace: Make, exporter: TorchScript | Dynamo
) -> None:
    out = workspace()
    source = bring(out, tmp_path / "user", "nested")
    signature, golden = source.facts.signature, source.artifacts["golden"]
    assert [spec.name for spec in signature.outputs] == ["output_0_0", "output_0_1", "output_1"]
    report = export(exporter, out, model=source.artifacts["model"], signature=signature, golden=golden)
    model = report.artifacts["model"]
    structure(StructureConfig(), out, model=model).raise_if_blocked()
    numerics(NumericsConfig(), out, model=model, golden=golden).raise_if_blocked()


def test_nested_outputs_are_refused_by_name_when_they_do_not_have_a_row_per_sample(
    tmp_path: Path, workspace: Make
) -> None:
    with pytest.raises(StageError, match=r"output 'output_1_0' is \(1, 5, 16, 16\) for 40 samples; expected one row"):
        bring(workspace(), tmp_path / "user", "states")


def test_outputs_are_named_by_their_place_when_they_are_nested() -> None:
    one = torch.zeros(1)
    result = (one, (one, [one]), {"state": (one, "text", one), 3: one}, None)
    names = ["output_0", "output_1_0", "output_1_1_0", "output_2_state_0", "output_2_state_2", "output_2_3"]
    assert list(torch_network.named_outputs(result)) == names
    assert list(torch_network.named_outputs({"scores": one, "state": {"h": one}})) == ["scores", "state_h"]
    with pytest.raises(StageError, match=r"two outputs with the name 'state_h'"):
        torch_network.named_outputs({"state": {"h": one}, "state_h": one})


@pytest.mark.parametrize(("kind", "way"), [("complex64", r"torch\.view_as_real\(x\)"), ("bfloat16", r"x\.float\(\)")])
def test_output_that_the_runtime_cannot_return_is_refused_with_the_way_out(kind: str, way: str) -> None:
    with pytest.raises(StageError, match=rf"output 'output_1' is torch\.{kind}, .*Fix: return {way}"):
        torch_network.named_outputs((torch.zeros(2), torch.zeros(2, dtype=getattr(torch, kind))))
