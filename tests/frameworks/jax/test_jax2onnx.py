"""Flax's exporter and brought JAX functions: the same outputs in both layouts, the same bytes, or one clear refusal."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import framework_models
import numpy as np
import onnx
import pytest
from framework_models import SIZE

from frameworks.jax import function as jax_function
from frameworks.jax.brought_function import JaxModel
from frameworks.jax.classifier_training import FlaxTraining
from frameworks.jax.engine import load_engine
from frameworks.jax.jax2onnx import Jax2Onnx
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.export import export
from tasks.numerics import NumericsConfig, numerics
from tasks.structure import StructureConfig, structure

pytestmark = pytest.mark.slow
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # compiling takes longer here than computing
PICTURES = np.random.default_rng(0).standard_normal((70, 8, 12, 3)).astype(np.float32)
SHAPES = {"NHWC": (8, 12, 3), "NCHW": (3, 8, 12)}


@dataclass(frozen=True)
class Source:
    """A trained network, and where it lies."""

    out: Workspace
    report: Report[Any]

    @property
    def signature(self) -> Signature:
        return self.report.facts.signature

    @property
    def golden(self) -> Golden:
        return Golden.load(self.out.path(self.report.artifacts["golden"]))

    def export(self, later: Workspace, **config: object) -> Report[Any]:
        model, golden = self.report.artifacts["model"], self.report.artifacts["golden"]
        return export(Jax2Onnx(**config), later, model=model, signature=self.signature, golden=golden)


@pytest.fixture(scope="module", params=SHAPES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A network that saw two batches, once for each layout of its input."""
    from gauntlet.core.artifact import Store

    layout = request.param
    pictures = PICTURES if layout == "NHWC" else PICTURES.transpose(0, 3, 1, 2)
    split = ArraySplit({"picture": pictures}, np.arange(len(pictures)) % 4)
    spec = TensorSpec(name="picture", dtype="float32", shape=("batch", *SHAPES[layout]))
    signature = Signature(inputs=(spec,), outputs=(), layout=layout, labels=tuple("abcd"))
    out = Workspace(Store(tmp_path_factory.mktemp("store")), tmp_path_factory.mktemp("train"))
    training = FlaxTraining(widths=(4, 6), epochs=1, batch_size=32)
    return Source(out, training.fit(dict.fromkeys(("train", "validation", "test"), split), signature, out))


def test_export_answers_as_the_source_when_run_at_any_batch_size(
    trained: Source, workspace: Callable[..., Workspace]
) -> None:
    later = workspace(trained.out.store)
    session = open_session(later.path(trained.export(later).artifacts["model"]))
    for batch in (1, 2, 3, 7, 64):
        for case in trained.golden.cases.values():
            actual = batched_inference(session, case.inputs).run(batch)["logits"]
            np.testing.assert_allclose(actual, case.outputs["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("opset", [15, 23])
def test_export_passes_both_gates_when_any_opset_is_asked_for(
    trained: Source, workspace: Callable[..., Workspace], opset: int
) -> None:
    later = workspace(trained.out.store)
    report = trained.export(later, opset=opset)
    model: Artifact = report.artifacts["model"]
    structure(StructureConfig(), later, model=model).raise_if_blocked()
    numerics(NumericsConfig(), later, model=model, golden=trained.report.artifacts["golden"]).raise_if_blocked()
    assert report.facts.opset == opset
    graph = onnx.load(later.path(model)).graph
    axes = {
        t.name: tuple(d.dim_param or d.dim_value for d in t.type.tensor_type.shape.dim)
        for t in (*graph.input, *graph.output)
    }
    assert axes == {"picture": ("batch", *SHAPES[trained.signature.layout]), "logits": ("batch", 4)}


def test_export_has_the_same_bytes_when_repeated(trained: Source, workspace: Callable[..., Workspace]) -> None:
    first, again = (trained.export(workspace(trained.out.store)) for _ in range(2))
    assert first.artifacts == again.artifacts


def test_function_that_becomes_an_invalid_graph_is_refused(workspace: Callable[..., Workspace], tmp_path: Path) -> None:
    (tmp_path / "spectra.py").write_text("import jax.numpy as jnp\ndef power(x):\n    return abs(jnp.fft.rfft(x))\n")
    split = ArraySplit({"x": PICTURES[:, 0, 0]}, None)
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", 3))
    out, signature = workspace(), Signature(inputs=(spec,), outputs=(), layout="none")
    source = JaxModel(function="spectra:power", code_folder=tmp_path)
    brought = Source(out, source.fit({"test": split}, signature, out))
    with pytest.raises(
        StageError, match=r"cannot convert train\.function: spectra:power.* Fix: compute this step with"
    ):
        brought.export(workspace(out.store))


@pytest.mark.parametrize("divisor", ["2", "-1.5"])
def test_remainder_has_the_sign_of_jax_s_at_any_batch_size(
    workspace: Callable[..., Workspace], tmp_path: Path, divisor: str
) -> None:
    (tmp_path / "clock.py").write_text(f"def hand(x):\n    return x % {divisor}\n")
    split = ArraySplit({"x": PICTURES[:, 0, 0] * 4}, None)
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", 3))
    out, signature = workspace(), Signature(inputs=(spec,), outputs=(), layout="none")
    brought = Source(out, JaxModel(function="clock:hand", code_folder=tmp_path).fit({"test": split}, signature, out))
    later = workspace(out.store)
    session = open_session(later.path(brought.export(later).artifacts["model"]))
    samples = np.random.default_rng(0).normal(0, 5, (7, 3)).astype(np.float32)
    for batch in (samples, samples[:1]):
        np.testing.assert_allclose(session.run(None, {"x": batch})[0], batch % np.float32(divisor), atol=1e-6)


def test_output_may_have_the_name_of_an_input(workspace: Callable[..., Workspace], tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text("def both(x):\n    return {'x': 2 * x, 'more': x + 1}\n")
    split = ArraySplit({"x": PICTURES[:, 0, 0]}, None)
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", 3))
    out, signature = workspace(), Signature(task="arrays", inputs=(spec,), outputs=(), layout="none")
    brought = Source(out, JaxModel(function="twice:both", code_folder=tmp_path).fit({"test": split}, signature, out))
    engine = load_engine(out.path(brought.report.artifacts["model"]), 1, {"trust": True})
    engine.set_samples(split.inputs)
    session = open_session(out.path(brought.export(out).artifacts["model"]))
    for names in ([output.name for output in each.outputs] for each in (brought.signature, engine)):
        assert names == ["x_out", "more"]
    twice, more = session.run(["x_out", "more"], split.inputs)
    np.testing.assert_allclose(twice - more, split.inputs["x"] - 1, atol=1e-5)


IMAGES = np.random.default_rng(1).standard_normal((20, SIZE, SIZE, 3)).astype(np.float32)
SIGNATURE = Signature(
    inputs=(TensorSpec(name="picture", dtype="float32", shape=("batch", SIZE, SIZE, 3)),), outputs=(), layout="NHWC"
)


@pytest.fixture
def config(tmp_path: Path) -> JaxModel:
    made = framework_models.jax_function(tmp_path)
    return JaxModel(function="jaxnets:predict", code_folder=tmp_path, parameters=made.parameters)


def test_golden_outputs_are_the_functions(config: JaxModel, workspace: Callable[..., Workspace]) -> None:
    out = workspace()
    report = config.fit({"test": ArraySplit({"picture": IMAGES})}, SIGNATURE, out)
    golden = Golden.load(out.path(report.artifacts["golden"]))
    with np.load(config.parameters) as weights:
        hidden = np.maximum(IMAGES.reshape(20, -1) @ weights["dense/kernel"], 0)
        scores = hidden @ weights["head"]
    assert np.allclose(golden.test_outputs["scores"], scores, atol=1e-4)
    assert [spec.shape for spec in report.facts.signature.outputs] == [("batch", 4), ("batch", 16)]
    assert {path.name for path in config.files()} == {"jaxnets.py", "parameters.npz", "METADATA"}


def test_parameters_may_be_what_flax_serialized(config: JaxModel, tmp_path: Path) -> None:
    from flax.serialization import msgpack_serialize

    path = tmp_path / "parameters.msgpack"
    path.write_bytes(msgpack_serialize({"dense": {"kernel": np.ones((2, 3))}, "head": np.zeros(4)}))
    found = jax_function.read_parameters(path)
    assert {name: array.shape for name, array in found.items()} == {"dense/kernel": (2, 3), "head": (4,)}


@pytest.mark.parametrize("form", ["npz", "msgpack"])
def test_parameters_of_a_type_that_numpy_lacks_are_refused_with_a_way(form: str, tmp_path: Path) -> None:
    from flax.serialization import msgpack_serialize
    from jax import numpy as jnp

    path, kernel = tmp_path / f"parameters.{form}", np.asarray(jnp.ones((2, 2), jnp.bfloat16))
    if form == "npz":
        np.savez(path, **{"dense/kernel": kernel})
    else:
        path.write_bytes(msgpack_serialize({"dense": {"kernel": kernel}}))
    with pytest.raises(StageError, match=r"'dense/kernel' is bfloat16.*Fix: convert all with astype\('float32'\)"):
        jax_function.read_parameters(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": "jaxnets:missing"}, "jaxnets has no function 'missing'"),
        ({"function": "jaxnets:broken"}, "jaxnets:broken returns a str that holds str; expected an array"),
        (
            {"parameters": Path("weights.bin")},
            "a JAX function; expected parameters in one of .npz, .msgpack. Fix: write them with numpy.savez",
        ),
        ({"parameters": Path("nowhere.npz")}, "not a .npz file of arrays"),
        ({"parameters": None}, "the model takes the inputs parameters, image; the data has picture"),
    ],
)
def test_function_that_does_not_fit_is_refused(
    config: JaxModel, workspace: Callable[..., Workspace], change: dict[str, object], message: str
) -> None:
    with pytest.raises(StageError, match=message):
        config.replace(**change).fit({"test": ArraySplit({"picture": IMAGES})}, SIGNATURE, workspace())
