"""The data's arrays are fed to a model's arguments by name, whatever order they are saved in."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.arguments import Arguments
from frameworks.jax.function import load_function
from frameworks.session import LoadedModel
from frameworks.sklearn.brought_estimator import SklearnModel
from frameworks.torch.brought_network import TorchModel
from frameworks.torch.program import EXPORTED, SCRIPTED, load_program
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.user_code import UserCode
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit

NETWORK = """
import torch


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, input_ids, attention_mask):
        return self.scale * (input_ids * 10 + attention_mask)
"""
RNG = np.random.default_rng(0)
MASK = RNG.integers(0, 2, (6, 4))
IDS = RNG.integers(0, 9, (6, 4))
SWAPPED = {"attention_mask": MASK, "input_ids": IDS}
EXPECTED = IDS * 10.0 + MASK
FUNCTIONS = {
    "two": "def two(input_ids, attention_mask): return input_ids * 10.0 + attention_mask",
    "default": "def default(input_ids, attention_mask, scale=1.0): return (input_ids * 10.0 + attention_mask) * scale",
    "any_number": "def any_number(*arrays): return arrays[0] * 10.0 + arrays[1]",
}


def network() -> Any:
    names: dict[str, Any] = {}
    exec(NETWORK, names)
    return names["Masked"]()


def program(folder: Path) -> LoadedModel:
    import torch

    torch.export.save(
        torch.export.export(network(), (torch.ones(6, 4).long(), torch.zeros(6, 4).long())), folder / "net.pt2"
    )
    return load_program(folder / "net.pt2", EXPORTED, trust=True)


def scripted(folder: Path) -> LoadedModel:
    import torch

    example = torch.ones(6, 4).long(), torch.zeros(6, 4).long()
    torch.jit.trace(network(), example).save(folder / "net.pt")
    return load_program(folder / "net.pt", SCRIPTED, trust=True)


def function(folder: Path, name: str = "two") -> LoadedModel:
    (folder / "nets.py").write_text(FUNCTIONS[name])
    return load_function(UserCode.read(folder, f"nets:{name}"), None, "nets")


def output(model: LoadedModel, samples: NamedArrays) -> np.ndarray:
    feed = {spec.name: samples[spec.name] for spec in model.inputs_of(samples)}
    [array] = model.call(feed).values()
    return array


@pytest.mark.parametrize("load", [program, scripted, function])
def test_model_is_fed_by_name_when_the_arrays_are_saved_in_another_order(
    tmp_path: Path, load: Callable[[Path], LoadedModel]
) -> None:
    assert np.array_equal(output(load(tmp_path), SWAPPED), EXPECTED)


@pytest.mark.parametrize("load", [program, scripted, function])
@pytest.mark.parametrize("names", [("mask", "input_ids"), ("b", "a"), ("attention_mask", "input_ids", "token_types")])
def test_arrays_whose_names_are_not_the_arguments_are_refused_with_both(
    tmp_path: Path, load: Callable[[Path], LoadedModel], names: tuple[str, ...]
) -> None:
    message = rf"takes the inputs input_ids, attention_mask; the data has {', '.join(names)}. Fix: give one array"
    with pytest.raises(StageError, match=message):
        load(tmp_path).inputs_of(dict.fromkeys(names, IDS))


def test_several_arrays_are_refused_when_the_arguments_have_no_names(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"inputs have no names, .* the data's attention_mask, input_ids"):
        function(tmp_path, "any_number").inputs_of(SWAPPED)


def test_optional_argument_is_fed_when_the_data_has_it(tmp_path: Path) -> None:
    model = function(tmp_path, "default")
    assert np.array_equal(output(model, SWAPPED), EXPECTED)
    assert np.array_equal(output(model, {"scale": np.full((6, 1), 2.0)} | SWAPPED), 2 * EXPECTED)


@pytest.mark.parametrize(
    ("arguments", "arrays", "order"),
    [
        (Arguments(("image",)), ["picture"], ("picture",)),
        (Arguments(), ["picture"], ("picture",)),
        (Arguments((), ("ids", "mask")), ["tokens"], ("tokens",)),
        (Arguments((), ("ids", "mask", "types")), ["mask", "ids"], ("ids", "mask")),
        (Arguments(("ids",), ("mask",)), ["mask"], None),
        (Arguments((), ("ids", "mask", "types")), ["ids", "types"], None),
        (Arguments(("ids", "mask")), ["ids"], None),
    ],
)
def test_call_order_is_by_name_but_for_a_single_array(
    arguments: Arguments, arrays: list[str], order: tuple[str, ...] | None
) -> None:
    if order is None:
        with pytest.raises(StageError, match=re.escape(f"the data has {', '.join(arrays)}.")):
            arguments.call_order(arrays)
    else:
        assert arguments.call_order(arrays) == order


def signature(arrays: NamedArrays) -> Signature:
    specs = [TensorSpec(name=n, dtype=a.dtype.name, shape=("batch", *a.shape[1:])) for n, a in arrays.items()]
    return Signature(task="arrays", inputs=tuple(specs), outputs=(), layout="none")


def test_users_network_is_fed_and_saved_by_the_names_of_its_arguments(
    tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    import torch

    (tmp_path / "nets.py").write_text(NETWORK)
    torch.save(network().state_dict(), tmp_path / "w.pt")
    model = TorchModel(factory="nets:Masked", code_folder=tmp_path, weights=tmp_path / "w.pt")
    out = workspace()
    report = model.fit({"test": ArraySplit(SWAPPED)}, signature(SWAPPED), out)
    golden = Golden.load(out.path(report.artifacts["golden"]))
    assert np.array_equal(golden.test_outputs["logits"], EXPECTED)
    assert [spec.name for spec in report.facts.signature.inputs] == ["input_ids", "attention_mask"]
    renamed = {"mask": MASK, "ids": IDS}
    with pytest.raises(StageError, match=r"nets:Masked: the model takes the inputs input_ids, attention_mask; the"):
        model.fit({"test": ArraySplit(renamed)}, signature(renamed), out)


def estimator(path: Path, *, table: bool) -> SklearnModel:
    import pandas as pd
    import skops.io
    from sklearn.linear_model import LinearRegression

    columns = {"a": np.arange(8.0), "b": np.arange(8.0) % 3}
    inputs = pd.DataFrame(columns) if table else np.stack([*columns.values()], 1)
    skops.io.dump(LinearRegression().fit(inputs, columns["a"] - 5 * columns["b"]), path)
    return SklearnModel(model=path)


COLUMNS = {"b": np.array([[1.0], [2.0], [4.0]], np.float32), "a": np.array([[9.0], [6.0], [0.0]], np.float32)}


def test_columns_of_a_table_are_found_by_name(tmp_path: Path, workspace: Callable[..., Workspace]) -> None:
    out = workspace()
    model = estimator(tmp_path / "m.skops", table=True)
    report = model.fit({"test": ArraySplit(COLUMNS)}, signature(COLUMNS), out)
    golden = Golden.load(out.path(report.artifacts["golden"]))
    assert np.allclose(golden.test_outputs["variable"], COLUMNS["a"] - 5 * COLUMNS["b"], atol=1e-4)
    assert [spec.name for spec in report.facts.signature.inputs] == ["a", "b"]
    assert [spec.name for spec in model.load_model(out.store).inputs_of(COLUMNS)] == ["a", "b"]


def test_columns_are_refused_when_the_estimator_was_fitted_on_a_matrix(
    tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    model = estimator(tmp_path / "m.skops", table=False)
    with pytest.raises(StageError, match=r"fitted on a matrix.* the data's b, a is. Fix: give one array"):
        model.fit({"test": ArraySplit(COLUMNS)}, signature(COLUMNS), workspace())
