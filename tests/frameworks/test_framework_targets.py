"""The source frameworks as targets: their own files give the exported file's answers, and other files are refused."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from frameworks.jax import network as flax
from frameworks.jax.jax2onnx import Jax2Onnx
from frameworks.jax.kinds import JaxJit
from frameworks.keras import files
from frameworks.keras.architectures import KerasNetworkSpec
from frameworks.keras.brought_model import SavedModelFolder
from frameworks.keras.exporter import Tf2Onnx
from frameworks.keras.kinds import KerasCompiled, KerasEager
from frameworks.keras.tensorflow_setup import start_tensorflow
from frameworks.sklearn import estimator as sklearn
from frameworks.sklearn.classifier_training import SklearnTraining
from frameworks.sklearn.kinds import Sklearn
from frameworks.sklearn.skl2onnx import Skl2Onnx
from frameworks.torch.kinds import TorchEager
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.race.contender import Entry, Plan
from gauntlet.race.expected_outputs import ExpectedOutputs
from gauntlet.race.target_examiner import TargetExaminer
from gauntlet.race.target_validation import Validation, validate_target
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.worker_client import WorkerClient, WorkerFailed
from gauntlet.targets import OrtCpu, default_targets
from gauntlet.targets.base import BaseTarget
from tasks.benchmark.other_targets import race_on_target
from wings.comparison.library.target_comparison import compare_targets

RNG = np.random.default_rng(0)
PLAN = Plan(batch_sizes=(1, 3), rounds=6, block_ms=1, threads=1, timeout_s=100, restarts=False)


@dataclasses.dataclass(frozen=True)
class Exported:
    """A framework's own file, the ONNX file made of it, and samples."""

    source: Path
    model: Path
    inputs: Path

    def look(self, target: BaseTarget, source: Path | None = None) -> Validation:
        expected = ExpectedOutputs.of(self.model, self.inputs, 60)
        return validate_target(source or self.source, target, expected, self.inputs, threads=1, timeout_s=100)


OfFlax = Callable[[Any], Exported]


def exported(exporter: Any, source: Path, samples: np.ndarray, outputs: list[str], layout: Any = "none") -> Exported:
    shapes = {"label": ("batch",)}
    specs = tuple(TensorSpec(name=n, dtype="float32", shape=shapes.get(n, ("batch", 3))) for n in outputs)
    given = (TensorSpec(name="input", dtype="float32", shape=("batch", *samples.shape[1:])),)
    model, inputs = source.with_name("exported.onnx"), source.with_name("in.npz")
    exporter.write(source, Signature(inputs=given, outputs=specs, layout=layout), model)
    np.savez(inputs, input=samples)
    return Exported(source, model, inputs)


def pictures(layout: str) -> np.ndarray:
    shape = (5, 3, 16, 16) if layout == "NCHW" else (5, 16, 16, 3)
    return RNG.standard_normal(shape, dtype=np.float32)


def keras_network() -> Any:
    return KerasNetworkSpec(architecture="small-cnn", shape=(16, 16, 3), classes=3, batch_norm_momentum=0.9).build()


@pytest.fixture(scope="module")
def of_flax(tmp_path_factory: pytest.TempPathFactory) -> OfFlax:
    """Return a function that exports a Flax network of a layout, once."""

    @cache
    def export(layout: Any) -> Exported:
        path = tmp_path_factory.mktemp("flax") / "model.npz"
        recipe = flax.SmallCnn(channels=3, classes=3, height=16, width=16, layout=layout, widths=(8, 8))
        flax.save(path, recipe, recipe.build())
        return exported(Jax2Onnx(), path, pictures(layout), ["scores"], layout)

    return export


def right(truth: Validation) -> None:
    assert truth.reason is None
    assert (truth.stated, truth.effective, truth.macs_share) == ("f32", "f32", 1)
    assert sum(truth.nodes.values()) > 1


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_flax_answers_as_its_exported_file_in_either_layout(of_flax: OfFlax, layout: str) -> None:
    right(of_flax(layout).look(JaxJit()))


@pytest.mark.slow
def test_keras_answers_as_its_exported_file_called_in_both_ways(tmp_path: Path) -> None:
    files.save(tmp_path / "model.keras", keras_network())
    network = exported(Tf2Onnx(), tmp_path / "model.keras", pictures("NCHW"), ["scores"], "NCHW")
    for target in (KerasEager(), KerasCompiled()):
        truth = network.look(target)
        right(truth)
        assert list(truth.nodes) == ["CPU:0"]


@pytest.mark.nightly
def test_saved_model_answers_as_its_exported_file(tmp_path: Path) -> None:
    keras_network().export(tmp_path / "saved", format="tf_saved_model", verbose=False)
    files.pack_saved_model(tmp_path / "saved", tmp_path / "model.zip", SavedModelFolder(model=tmp_path).signature)
    network = exported(Tf2Onnx(), tmp_path / "model.zip", pictures("NHWC"), ["scores"], "NHWC")
    truth = network.look(KerasCompiled().with_trust())
    assert truth.reason is None
    assert (truth.effective, truth.nodes) == ("f32", {"CPU:0": 1})


@pytest.mark.slow
def test_sklearn_answers_as_its_exported_file(tmp_path: Path) -> None:
    samples = RNG.standard_normal((60, 4)).astype(np.float32)
    sklearn.save(tmp_path / "model.skops", SklearnTraining()._untrained().fit(samples, np.arange(60) % 3))
    model = exported(Skl2Onnx(), tmp_path / "model.skops", samples[:5], ["label", "probabilities"])
    right(model.look(Sklearn()))


@pytest.mark.slow
def test_other_weights_than_the_exported_ones_are_seen(of_flax: OfFlax, tmp_path: Path) -> None:
    model = of_flax("NHWC")
    _, recipe = flax.load(model.source)
    flax.save(tmp_path / "other.npz", recipe, recipe.build(seed=1))
    assert "target.sqnr" in (model.look(JaxJit(), tmp_path / "other.npz").reason or "")
    flax.save(tmp_path / "turned.npz", recipe.replace(layout="NCHW"), recipe.build())
    assert "takes images of (3, 16, 16) (NCHW)" in (model.look(JaxJit(), tmp_path / "turned.npz").error or "")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (JaxJit(), "not a network saved by this project"),
        pytest.param(Sklearn(), "not a skops file", marks=pytest.mark.slow),
        pytest.param(KerasEager(), "cannot read it", marks=pytest.mark.nightly),
        pytest.param(KerasCompiled(), "not a SavedModel stored by this project", marks=pytest.mark.slow),
        pytest.param(TorchEager(), "not a network saved by this project", marks=pytest.mark.nightly),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_target_says_what_is_wrong_when_the_file_is_another(tmp_path: Path, target: BaseTarget, told: str) -> None:
    path = tmp_path / f"model{target.model_suffixes[-1]}"
    with path.open("wb") as file:
        np.savez(file, x=np.ones(3))
    with WorkerClient(target.command()) as worker, pytest.raises(WorkerFailed, match=told) as refused:
        worker.load(path, path, 1, 60, target.options())
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("target", [t for t in default_targets() if t.model_suffixes], ids=lambda t: t.name)
def test_target_takes_the_files_of_its_own_framework_alone(target: BaseTarget) -> None:
    for ending in (".pt", ".keras", ".zip", ".npz", ".skops", ".onnx"):
        refusal = target.rejection_reason(Path(f"model{ending}"))
        assert (refusal is None) == (ending in target.model_suffixes)
        assert refusal is None or refusal.endswith(f"got model{ending}")
    assert "--framework-model" in (target.rejection_reason(None) or "")
    assert OrtCpu().rejection_reason(None) is None


def test_target_is_unavailable_when_its_framework_is_not_installed() -> None:
    class Absent(Sklearn):
        packages: ClassVar[dict[str, str]] = {"no_such_framework": "sklearn"}

    assert Absent().unavailable() == "no_such_framework is not installed; install it with: make sklearn"
    assert Sklearn().unavailable() is None


@pytest.mark.slow
def test_source_races_beside_its_export_and_only_where_it_belongs(of_flax: OfFlax, tmp_path: Path) -> None:
    model = of_flax("NHWC")
    samples = {"input": pictures("NHWC")}
    found = compare_targets(
        {"cnn": model.model}, [OrtCpu(), JaxJit(), Sklearn()], samples, tmp_path, PLAN, framework_model=model.source
    )
    assert {p.name: p.status for p in found.pairs} == {
        "cnn on ort-cpu": "measured", "model on jax-jit": "measured", "model on sklearn": "not applicable",
    }  # fmt: skip
    assert [row.batch for row in found.pairs[1].rows] == [1, 3]
    assert found.pairs[2].reason.endswith("file (.skops), got model.npz")


@pytest.mark.slow
def test_run_races_its_source_beside_the_reference_alone(of_flax: OfFlax) -> None:
    model = of_flax("NCHW")
    models = {"fp32": model.model, "twin": model.model}
    examination = TargetExaminer.from_models(models, model.inputs, PLAN, model.source)
    found = race_on_target(JaxJit(), examination, Entry(model.model), resolution=0.01, on_round=lambda _: None)[0]
    assert [(one.candidate, one.reason) for one in found] == [
        ("fp32", ""), ("twin", "the target runs only the framework's own model, which is the reference"),
    ]  # fmt: skip
    assert [row.target for row in found[0].rows] == ["jax-jit", "jax-jit"]


def busiest_share(folder: Path, source: Path, target: BaseTarget, threads: int) -> float:
    """Return the share of a worker's processor time, while it runs, that is its busiest thread's."""
    np.savez(folder / "large.npz", input=RNG.standard_normal((32, 64, 64, 16), dtype=np.float32))
    with WorkerClient(target.command()) as worker:
        worker.load(source, folder / "large.npz", threads, 100, target.options())
        worker.run(32, 1, 100)
        before = ticks(worker._process.pid)
        worker.run(32, 800, 100)
        used = [count - before.get(name, 0) for name, count in ticks(worker._process.pid).items()]
    return max(used) / sum(used)


def ticks(pid: int) -> dict[str, int]:
    fields = {t.name: (t / "stat").read_text().rpartition(") ")[2].split() for t in Path(f"/proc/{pid}/task").iterdir()}
    return {name: int(values[11]) + int(values[12]) for name, values in fields.items()}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are told by Linux")
@pytest.mark.skipif(usable_threads() < 2, reason="one core has one busy thread")
@pytest.mark.parametrize(
    "target", [JaxJit(), pytest.param(KerasCompiled(xla=False), marks=pytest.mark.nightly)], ids=lambda t: t.name
)
def test_threads_are_those_that_were_asked_for(tmp_path: Path, target: BaseTarget) -> None:
    if target.kind == "jax-jit":
        recipe = flax.SmallCnn(channels=16, classes=3, height=64, width=64, layout="NHWC", widths=(64, 64))
        path = tmp_path / "model.npz"
        flax.save(path, recipe, recipe.build())
    else:
        layers = start_tensorflow().layers
        pixels = start_tensorflow().Input((64, 64, 16))
        path = tmp_path / "model.keras"
        convolved = layers.Conv2D(64, 3, padding="same")(layers.Conv2D(64, 3, padding="same")(pixels))
        files.save(path, start_tensorflow().Model(pixels, layers.GlobalAveragePooling2D()(convolved)))
    assert busiest_share(tmp_path, path, target, 1) > 0.85 > busiest_share(tmp_path, path, target, 2)
