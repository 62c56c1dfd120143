"""Quantisation: every member of the union makes a smaller model that still answers."""

import itertools
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brought_models
import numpy as np
import onnx
import pytest

from tasks.accuracy import AccuracyConfig, AccuracyFacts, check_accuracy
from tasks.artifact import Artifact
from tasks.data.read import read_split
from tasks.errors import StageError
from tasks.quantize import QuantizeConfig, quantize
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8
from tasks.report import Report
from tasks.signature import Signature, describe
from tasks.validate.structure import StructureConfig, check_structure
from tasks.workspace import Workspace

MEMBERS = typing.get_args(typing.get_args(QuantizeConfig)[0])
STATIC = [
    StaticInt8(activations=a, weights=w, per_channel=p)
    for (a, w), p in itertools.product([("u8", "s8"), ("s8", "s8"), ("u8", "u8")], [True, False])
]
RECIPES = [*STATIC, DynamicInt8(weights="u8"), DynamicInt8(weights="s8")]


def test_recipes_cover_the_union_when_listed() -> None:
    assert {type(r) for r in RECIPES} == set(MEMBERS)
    assert len({r.name for r in RECIPES}) == len(RECIPES)


def accuracy(trained, out: Workspace, model: Artifact, **config: float) -> Report[AccuracyFacts]:
    return check_accuracy(AccuracyConfig(**config), out, model=model, golden=trained.golden, test=trained.test)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_quantize_keeps_structure_answers_and_signature_when_a_recipe_is_applied(
    trained, workspace: Callable[..., Workspace], recipe: Any
) -> None:
    out = workspace(trained.store)
    report = quantize(recipe, out, model=trained.model, calibration=trained.artifacts["calibration"])
    model = report.artifacts["model"]
    check_structure(StructureConfig(), out, model=model).enforce()
    judged = accuracy(trained, out, model, max_accuracy_drop=0.05, min_sqnr_db=10)
    judged.enforce()
    assert judged.facts.top1_agreement > 0.9
    assert np.isfinite(judged.facts.sqnr_db)  # it was quantised: the answers are near, not the same
    assert judged.facts.integer_share.integer_nodes + judged.facts.integer_share.float_nodes == 4
    assert Signature.read(onnx.load(out.path(model))) == Signature.read(trained.proto())
    assert model.size_bytes < 0.6 * trained.model.size_bytes
    assert report.facts.size_ratio == trained.model.size_bytes / model.size_bytes
    assert report.facts.calibration_images == (128 if recipe.kind == "static" else 0)
    assert list(out.folder.iterdir()) == []
    assert trained.store.intact(trained.model)


@pytest.mark.parametrize("images", [1, 7, 20])
def test_quantize_uses_as_many_images_when_a_number_is_set(
    trained, workspace: Callable[..., Workspace], images: int
) -> None:
    out = workspace(trained.store)
    recipe = StaticInt8(images=images)
    report = quantize(recipe, out, model=trained.model, calibration=trained.artifacts["calibration"])
    assert report.facts.calibration_images == images


def test_quantize_has_the_same_bytes_when_repeated(trained, workspace: Callable[..., Workspace]) -> None:
    reports = [
        quantize(
            StaticInt8(), workspace(trained.store), model=trained.model, calibration=trained.artifacts["calibration"]
        )
        for _ in range(2)
    ]
    assert reports[0].artifacts == reports[1].artifacts


def test_accuracy_gate_fails_when_calibration_saw_only_zeros(trained, workspace: Callable[..., Workspace]) -> None:
    out = workspace(trained.store)
    real = read_split(out.path(trained.artifacts["calibration"]))
    np.savez(out.folder / "zeros.npz", input=np.zeros((len(real), 3, 32, 32), np.float32), labels=real.labels)
    zeros = out.keep(out.folder / "zeros.npz")
    model = quantize(StaticInt8(), out, model=trained.model, calibration=zeros).artifacts["model"]
    judged = accuracy(trained, out, model)
    assert "accuracy.max_accuracy_drop" in {check.name for check in judged.failures}
    assert judged.facts.accuracy < judged.facts.reference_accuracy - 0.2


def test_quantize_raises_a_stage_error_when_the_images_have_another_shape(
    trained, workspace: Callable[..., Workspace]
) -> None:
    out = workspace(trained.store)
    np.savez(out.folder / "odd.npz", input=np.zeros((8, 5, 32, 32), np.float32), labels=np.zeros(8, np.int64))
    odd = out.keep(out.folder / "odd.npz")
    with pytest.raises(StageError, match="static-u8s8: ") as caught:
        quantize(StaticInt8(), out, model=trained.model, calibration=odd)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("recipe", [StaticInt8(), DynamicInt8()], ids=lambda r: r.name)
def test_quantize_says_so_when_there_is_nothing_to_quantise(
    workspace: Callable[..., Workspace], tmp_path: Path, recipe: StaticInt8 | DynamicInt8
) -> None:
    path, samples = brought_models.text_labels(tmp_path)
    out = workspace()
    np.savez(tmp_path / "calibration.npz", **samples)
    proto = onnx.load(path)
    describe(proto).write(proto)
    onnx.save(proto, path)
    report = quantize(recipe, out, model=out.keep(path), calibration=out.keep(tmp_path / "calibration.npz"))
    assert [check.name for check in report.failures] == ["quantize.quantized_nodes"]
    assert "finds nothing to quantise among LinearClassifier, ZipMap" in report.failures[0].detail
