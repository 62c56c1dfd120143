"""Programs of torch.export and torch.jit: how they take their tensors, their batches and their types."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

from frameworks.session import LoadedModel
from frameworks.torch.brought_program import ExportedProgram, ScriptedModule
from frameworks.torch.dynamo import Dynamo
from frameworks.torch.exporter import TorchExport
from frameworks.torch.program import EXPORTED, SCRIPTED, load_program
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit

A, B = np.random.default_rng(0).standard_normal((2, 40, 8)).astype(np.float32)
BATCH = torch.export.Dim("batch", max=16)
OPEN = {0: BATCH}


class Difference(nn.Module):
    """Tells its two inputs apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def difference(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.layer(a - 2 * b)


class Keyword(Difference):
    def forward(self, a: torch.Tensor, *, b: torch.Tensor) -> torch.Tensor:
        return self.difference(a, b)


class Dictionary(Difference):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.difference(batch["a"], batch["b"])


class Sequence(Difference):
    def forward(self, pair: list[torch.Tensor], scale: int) -> torch.Tensor:
        return self.difference(*pair) * scale


class Numbers(Difference):
    def forward(self, x: torch.Tensor, scale: int = 3, mask: torch.Tensor | None = None) -> torch.Tensor:
        result = self.layer(x) * scale
        if mask is not None:
            result = result * mask
        if bool(x.sum() > 0):
            result = result + 1
        return result


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., LoadedModel]:
    def load(network: nn.Module, args: tuple[Any, ...], axes: dict[str, Any], **keywords: torch.Tensor) -> LoadedModel:
        program = torch.export.export(network.eval(), args, keywords or None, dynamic_shapes=axes)
        torch.export.save(program, tmp_path / "net.pt2")
        return load_program(tmp_path / "net.pt2", EXPORTED, trust=True)

    return load


TWO, TWO_MORE = torch.randn(2, 2, 8)


@pytest.mark.parametrize(
    ("network", "args", "keywords", "axes", "names"),
    [
        (Keyword(), (TWO,), {"b": TWO_MORE}, {"a": OPEN, "b": OPEN}, ("a", "b")),
        (Dictionary(), ({"a": TWO, "b": TWO_MORE},), {}, {"batch": {"a": OPEN, "b": OPEN}}, ("batch_a", "batch_b")),
        (Sequence(), ([TWO, TWO_MORE], 1), {}, {"pair": [OPEN, OPEN], "scale": None}, ("pair_0", "pair_1")),
    ],
    ids=["keyword", "dictionary", "sequence and constant"],
)
def test_tensors_of_a_program_go_where_it_takes_them_in_parts_of_its_largest_batch(
    exported: Callable[..., LoadedModel],
    network: Difference,
    args: tuple[Any, ...],
    keywords: dict[str, torch.Tensor],
    axes: dict[str, Any],
    names: tuple[str, str],
) -> None:
    model = exported(network, args, axes, **keywords)
    assert model.arguments.required == names
    (outputs,) = model.call(dict(zip(names, (A, B), strict=True))).values()
    expected = network.difference(torch.from_numpy(A), torch.from_numpy(B)).detach().numpy()
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)


def test_program_that_needs_several_samples_at_once_is_refused(exported: Callable[..., LoadedModel]) -> None:
    axes = {"a": {0: torch.export.Dim("batch", min=3)}, "b": {0: torch.export.Dim("batch", min=3)}}
    with pytest.raises(StageError, match=r"takes no less than 3 samples at once\. Fix: .*without min"):
        exported(Keyword(), (torch.randn(4, 8),), axes, b=torch.randn(4, 8))


def test_program_of_bfloat16_is_refused(exported: Callable[..., LoadedModel]) -> None:
    half = TWO.bfloat16()
    with pytest.raises(StageError, match=r"its weight layer\.weight is bfloat16.*\. Fix: call float\(\)"):
        exported(Keyword().bfloat16(), (half,), {"a": OPEN, "b": OPEN}, b=half)


@pytest.mark.parametrize("number", [lambda x: 3, lambda x: x.shape[0]], ids=["constant", "size of the batch"])
def test_program_that_returns_a_number_is_refused(
    exported: Callable[..., LoadedModel], number: Callable[[torch.Tensor], int]
) -> None:
    class Counted(Difference):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None, int]:
            return self.layer(x), None, number(x)

    with pytest.raises(StageError, match=r"its output 2 is a number\. Fix: return tensors alone"):
        exported(Counted(), (TWO,), {"x": OPEN})


def test_program_in_training_mode_is_refused_with_the_way_out(exported: Callable[..., LoadedModel]) -> None:
    class Training(Difference):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return nn.functional.batch_norm(a, None, None, training=True) @ self.layer.weight.T

    with pytest.raises(StageError, match=r"depends on the other samples of its batch\. Fix: .*eval\(\)"):
        exported(Training(), (TWO,), {"a": OPEN}).try_on({}, {"a": A})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_scripted_program_takes_samples_in_the_type_of_its_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.jit.trace(nn.Linear(8, 3).to(dtype).eval(), TWO.to(dtype)).save(tmp_path / "net.pt")
    (spec,) = load_program(tmp_path / "net.pt", SCRIPTED, trust=True).inputs_of({"x": A})
    assert spec.dtype == str(dtype).removeprefix("torch.")


def test_scripted_program_is_exported_with_the_defaults_of_its_other_arguments(tmp_path: Path) -> None:
    program = torch.jit.script(Numbers().eval())
    program.save(tmp_path / "net.torchscript")
    axes = {"dtype": "float32", "shape": ("batch", 8)}, {"dtype": "float32", "shape": ("batch", 3)}
    inputs, outputs = TensorSpec(name="x", **axes[0]), TensorSpec(name="y", **axes[1])
    signature = Signature(task="arrays", inputs=(inputs,), outputs=(outputs,), layout="none")
    TorchScript().write(tmp_path / "net.torchscript", signature, tmp_path / "net.onnx")
    session = ort.InferenceSession(tmp_path / "net.onnx")
    for x in (np.abs(A), -np.abs(A)):  # both branches
        expected = program(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=0, atol=1e-5)


def test_program_takes_a_scalar_without_an_axis(tmp_path: Path) -> None:
    class Row(Difference):
        def forward(self, x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[row]

    torch.jit.script(Row().eval()).save(tmp_path / "net.pt")
    program = load_program(tmp_path / "net.pt", SCRIPTED, trust=True)
    assert program.call({"x": A, "row": np.array(1)})["output"].shape == (3,)


class Named(Difference):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.layer(x), "half": self.layer(x) / 2}


class Listed(Difference):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return self.layer(x), [self.layer(x) / 2]


@pytest.mark.parametrize("network", [Named(), Listed()])
def test_outputs_of_a_scripted_program_may_stand_in_a_dictionary_or_a_list(tmp_path: Path, network: nn.Module) -> None:
    torch.jit.script(network.eval()).save(tmp_path / "net.torchscript")
    program = load_program(tmp_path / "net.torchscript", SCRIPTED, trust=True)
    assert_exported_right(TorchScript(), tmp_path / "net.torchscript", program)


def assert_exported_right(exporter: TorchExport, path: Path, program: LoadedModel) -> None:
    expected = program.outputs(program.inputs_of({"x": A}), {"x": A})
    inputs = (TensorSpec(name="x", dtype="float32", shape=("batch", 8)),)
    outputs = tuple(TensorSpec(name=n, dtype="float32", shape=("batch", *a.shape[1:])) for n, a in expected.items())
    signature = Signature(task="arrays", inputs=inputs, outputs=outputs, layout="none")
    exporter.write(path, signature, path.with_suffix(".onnx"))
    values = ort.InferenceSession(path.with_suffix(".onnx")).run([*expected], {"x": A})
    for value, name in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5)


def test_outputs_of_a_program_may_have_the_names_of_inner_tensors(
    exported: Callable[..., LoadedModel], tmp_path: Path
) -> None:
    class Moments(Difference):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"mean": self.layer(x * x.mean(1, keepdim=True)), "linear": -x, "layer.bias": x + 1}

    program = exported(Moments(), (TWO,), {"x": OPEN})  # its own tensors are called mean, linear and layer.bias, too
    assert_exported_right(Dynamo(), tmp_path / "net.pt2", program)


def test_optional_tensor_of_a_scripted_program_is_an_input_like_others(tmp_path: Path) -> None:
    class Masked(Difference):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return self.layer(x) if mask is None else self.layer(x) * mask

    program = torch.jit.script(Masked().eval())
    program.save(tmp_path / "net.torchscript")
    inputs = [TensorSpec(name=name, dtype="float32", shape=("batch", n)) for name, n in {"x": 8, "mask": 3}.items()]
    outputs = (TensorSpec(name="y", dtype="float32", shape=("batch", 3)),)
    signature = Signature(task="arrays", inputs=tuple(inputs), outputs=outputs, layout="none")
    TorchScript().write(tmp_path / "net.torchscript", signature, tmp_path / "net.onnx")
    session = ort.InferenceSession(tmp_path / "net.onnx")
    assert [each.type for each in session.get_inputs()] == ["tensor(float)"] * 2
    expected = program(torch.from_numpy(A), torch.from_numpy(B[:, :3])).detach().numpy()
    np.testing.assert_allclose(session.run(None, {"x": A, "mask": B[:, :3]})[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", [EXPORTED, SCRIPTED])
def test_outputs_may_have_the_name_of_an_input_and_be_a_parameter(
    tmp_path: Path, workspace: Callable[..., Workspace], form: str
) -> None:
    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.anchors = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> Any:
            anchors = self.anchors.expand(x.shape[0], 3)
            return {"x": 2 * x, "grid": anchors} if torch.compiler.is_compiling() else (2 * x, anchors)

    path, network = tmp_path / f"net{form}", Returned().eval()
    if form == EXPORTED:
        torch.export.save(torch.export.export(network, (TWO,), dynamic_shapes=(OPEN,)), path)
    else:
        torch.jit.trace(network, TWO).save(path)
    signature = Signature(
        task="arrays", inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", 8)),), outputs=(), layout="none"
    )
    kind, exporter = (ExportedProgram, Dynamo()) if form == EXPORTED else (ScriptedModule, TorchScript())
    report = kind(model=path, trust=True).fit({"test": ArraySplit({"x": A})}, signature, out := workspace())
    names = [spec.name for spec in report.facts.signature.outputs]
    assert names == (["x_out", "grid"] if form == EXPORTED else ["output_0", "output_1"])
    exporter.write(out.path(report.artifacts["model"]), report.facts.signature, tmp_path / "net.onnx")
    outputs = ort.InferenceSession(tmp_path / "net.onnx").run(names, {"x": A})
    for actual, expected in zip(outputs, (2 * A, np.ones((40, 3))), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_scripted_program_is_exported_that_fails_on_zeros(tmp_path: Path, workspace: Callable[..., Workspace]) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            outputs, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=5)
            return outputs.sum(1)

    rng, network = np.random.default_rng(0), Packed().eval()
    samples = {"x": rng.standard_normal((8, 5, 3)).astype(np.float32), "lengths": rng.integers(1, 6, 8)}
    path = tmp_path / "net.torchscript"
    torch.jit.trace(network, tuple(torch.from_numpy(array[:3]) for array in samples.values())).save(path)
    shapes = {"x": ("batch", "length", 3), "lengths": ("batch",)}
    specs = (TensorSpec(name=n, dtype=a.dtype.name, shape=shapes[n]) for n, a in samples.items())
    signature = Signature(task="arrays", inputs=tuple(specs), outputs=(), layout="none")
    report = ScriptedModule(model=path, trust=True).fit({"test": ArraySplit(samples)}, signature, out := workspace())
    golden = out.path(report.artifacts["golden"])
    TorchScript().write_checked(path, report.facts.signature, tmp_path / "net.onnx", golden)
    session = ort.InferenceSession(tmp_path / "net.onnx")
    for batch in (1, 2, 8):
        feed = {name: array[:batch] for name, array in samples.items()}
        expected = network(*map(torch.from_numpy, feed.values())).detach().numpy()
        np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=0, atol=1e-5)
