"""Tests for every kind that a package brings: `pytest --pyargs wings.plugins.conformance`, with `-k KIND` for one.

They take each kind as a configuration without options makes it; one that needs some is only looked at.
"""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from pydantic import ValidationError

from configs.frameworks import all_frameworks, exporters_for
from configs.schema import PipelineConfig
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen
from gauntlet.core.unions import OneOf
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import DataSource
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from gauntlet.targets.base import BaseTarget
from tasks.export.base import Exporter
from tasks.optimize.base import Pass
from tasks.prune import Pruning
from tasks.quantize.base import Recipe
from tasks.train.base import Training

BASES: dict[str, type[Frozen]] = {
    "target": BaseTarget,
    "pass": Pass,
    "recipe": Recipe,
    "export": Exporter,
    "reader": DataSource,
    "train": Training,
    "prune": Pruning,
}
KINDS = [(part, name, kind) for part in BASES for name, kind in OneOf(part).kinds().items()]
MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
net (float[batch, 3, 8, 8] image) => (float[batch, 4] scores)
<float[4, 3, 3, 3] kernel, float[4] bias>
{
    convolved = Conv <pads = [1, 1, 1, 1]> (image, kernel, bias)
    positive = Relu (convolved)
    same = Identity (positive)
    pooled = GlobalAveragePool (same)
    scores = Flatten (pooled)
}
"""
SAMPLES: NamedArrays = {"image": np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype(np.float32)}
MAX_ERROR, MAX_QUANTIZED_ERROR = 1e-4, 0.3
"""Largest difference of an output from ONNX Runtime's, and from that of the model in floating point."""


def kinds_of(part: str) -> list[Any]:
    """Return the kinds of a part as arguments of a test."""
    return [pytest.param(kind, id=name) for its_part, name, kind in KINDS if its_part == part]


def made(kind: type[Frozen]) -> Any:
    """Return a kind with its defaults; skip the test where it has required options."""
    try:
        return kind()
    except ValidationError as error:
        pytest.skip(f"it needs options: {', '.join(str(problem['loc'][0]) for problem in error.errors())}")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small network with an open batch."""
    proto = parse_model(MODEL)
    weights = {"kernel": (4, 3, 3, 3), "bias": (4,)}
    rng = np.random.default_rng(1)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in weights.items()
    )
    onnx.save(proto, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def scores(session: Any) -> np.ndarray:
    """Return the network's output for the samples, in batches of two sizes."""
    return batched_inference(session, SAMPLES).run(3)["scores"]


@pytest.mark.parametrize(("part", "name", "kind"), KINDS, ids=[f"{part}-{name}" for part, name, _ in KINDS])
def test_kind_is_a_documented_part_of_a_configuration(part: str, name: str, kind: type[Frozen]) -> None:
    assert issubclass(kind, BASES[part])
    assert kind.__doc__
    assert not getattr(kind, "__abstractmethods__", None)
    value = made(kind)
    assert kind.model_validate(json.loads(value.model_dump_json())) == value
    assert name in PipelineConfig.model_json_schema()["$defs"][kind.__name__]["properties"]["kind"]["const"]


@pytest.mark.parametrize("package", sorted({kind.__module__.partition(".")[0] for _, _, kind in KINDS}))
def test_configuration_does_not_import_what_only_its_work_needs(package: str) -> None:
    own: list[Any] = [kind for _, _, kind in KINDS if kind.__module__.partition(".")[0] == package]
    modules = ", ".join(sorted({kind.__module__ for kind in own}))
    packages = [getattr(kind, "packages", None) for kind in own]
    heavy = {name for names in packages if isinstance(names, dict) for name in names}
    heavy |= {name for framework in all_frameworks() for name in framework.modules}
    code = f"import sys, {modules}; sys.exit(', '.join({heavy} & sys.modules.keys()) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{package} imports at once: {done.stderr.strip()}"


@pytest.mark.parametrize("kind", kinds_of("target"))
def test_target_gives_the_outputs_of_onnx_runtime(kind: type[BaseTarget], model: Path) -> None:
    target = made(kind)
    options = target.options()
    assert json.loads(json.dumps(options)) == options
    assert importlib.util.find_spec(kind.engine) is not None
    why = target.unavailable()
    if why is not None or kind.model_suffixes or target.environment:
        assert why is None or "\n" not in why
        pytest.skip(why or "it does not run ONNX models in this process")
    engine = importlib.import_module(kind.engine).load_engine(model, 1, options)
    engine.set_samples(SAMPLES)
    assert engine.runtime
    np.testing.assert_allclose(scores(engine), scores(open_session(model)), atol=MAX_ERROR)
    placed = engine.placement({"image": SAMPLES["image"][:1]})
    assert placed["asked"]
    assert placed["nodes"]


@pytest.mark.parametrize("kind", kinds_of("pass"))
def test_pass_leaves_the_outputs_as_they_are(kind: type[Pass], model: Path, tmp_path: Path) -> None:
    graph_pass = made(kind)
    assert graph_pass.name
    graph_pass.apply(model, tmp_path / "after.onnx")
    np.testing.assert_allclose(
        scores(open_session(tmp_path / "after.onnx")), scores(open_session(model)), atol=MAX_ERROR
    )


@pytest.mark.parametrize("kind", kinds_of("recipe"))
def test_recipe_writes_a_model_near_the_original(kind: type[Recipe], model: Path, tmp_path: Path) -> None:
    recipe = made(kind)
    assert recipe.name
    recipe.quantize(model, None, None, tmp_path / "after.onnx")
    before, after = scores(open_session(model)), scores(open_session(tmp_path / "after.onnx"))
    assert np.abs(after - before).max() <= MAX_QUANTIZED_ERROR * np.abs(before).max()


@pytest.mark.parametrize("kind", kinds_of("export"))
def test_exporter_names_a_framework_that_is_there(kind: type[Exporter]) -> None:
    assert kind.framework in [framework.name for framework in all_frameworks()]


@pytest.mark.parametrize("kind", kinds_of("reader"))
def test_reader_gives_splits_that_are_stored_and_read_again(kind: type[DataSource], tmp_path: Path) -> None:
    source = made(kind)
    if missing := [path for path in source.files() if not path.exists()]:
        pytest.skip(f"it reads {missing[0]}, which is not here")
    dataset = source.load()
    test = dataset.splits["test"]
    assert [spec.name for spec in dataset.signature.inputs]
    stored = read_split(test.save(tmp_path, "test"))
    assert len(stored) == len(test) > 0
    first = slice(0, min(4, len(test)))
    for name, array in test.take(first).items():
        np.testing.assert_array_equal(stored.take(first)[name], array)


@pytest.mark.parametrize("kind", kinds_of("train"))
def test_training_has_an_exporter(kind: type[Training]) -> None:
    assert exporters_for(str(kind.model_fields["kind"].default))
