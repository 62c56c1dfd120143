"""Two pieces of work are the same exactly when nothing that could change their result differs."""

from importlib.metadata import EntryPoint, packages_distributions
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.record.cache_key import OUR_PACKAGES, _read, cache_key, canonical_json, code_digests, imports_in, modules_of
from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen
from gauntlet.core.user_code import imported_modules, installed_packages
from gauntlet.runtime.processor import Processor
from gauntlet.targets.base import BaseTarget
from tasks.accuracy import accuracy
from tasks.benchmark import benchmark
from tasks.benchmark.config import BenchmarkConfig
from tasks.data import data
from tasks.evaluate import EvaluateConfig, evaluate
from tasks.export import export
from tasks.numerics import numerics
from tasks.optimize import optimize
from tasks.prune import prune
from tasks.quantize import quantize
from tasks.train import train

TorchModel = pytest.importorskip("frameworks.torch.brought_network").TorchModel
TorchTraining = pytest.importorskip("frameworks.torch.classifier_training").TorchTraining
Dynamo = pytest.importorskip("frameworks.torch.dynamo").Dynamo

ARTIFACT = Artifact(name="model.onnx", sha256="ab" * 32, size_bytes=3, path="ab/abab/model.onnx")


@given(st.floats(0, 1), st.floats(0, 1))
def test_work_key_differs_exactly_when_a_limit_differs(a: float, b: float) -> None:
    keys = [cache_key(evaluate, EvaluateConfig(min_accuracy=x), {"predictions": ARTIFACT}) for x in (a, b)]
    assert (keys[0] == keys[1]) == (a == b)


def test_work_key_differs_between_stages_with_equal_inputs() -> None:
    assert cache_key(evaluate, None, {"model": ARTIFACT}) != cache_key(quantize, None, {"model": ARTIFACT})


HASWELL = Processor("x86_64", frozenset({"fpu", "avx2"}))
CASCADE_LAKE = Processor("x86_64", HASWELL.flags | {"avx512f", "avx512_vnni"})


@pytest.mark.parametrize("stage", [accuracy, optimize, numerics])
def test_work_is_done_again_when_the_processor_computes_with_other_instructions(stage) -> None:
    def key(here: Processor) -> str:
        return cache_key(stage, None, {"model": ARTIFACT}, here)

    assert key(HASWELL) != key(CASCADE_LAKE)
    assert key(HASWELL) != key(Processor("aarch64", HASWELL.flags))
    assert key(HASWELL) == key(Processor("x86_64", HASWELL.flags | {"constant_tsc"}))  # no kernel asks for it


@pytest.mark.parametrize("stage", [data, train, prune])
def test_data_and_training_are_not_repeated_on_another_processor(stage) -> None:
    assert cache_key(stage, None, {}, HASWELL) == cache_key(stage, None, {}, CASCADE_LAKE)


def brought(device: str) -> TorchModel:
    tuning = {"device": device}
    return TorchModel.model_validate({"factory": "nets:make", "weights": "weights.pt", "fine_tune": tuning})


@pytest.mark.parametrize("config", [lambda device: TorchTraining(device=device), brought], ids=["trained", "tuned"])
def test_training_is_repeated_on_a_gpu_exactly_when_it_would_run_there(config) -> None:
    def key(device: str, *, gpu: bool) -> str:
        return cache_key(train, config(device), {}, gpu=gpu)

    assert key("auto", gpu=True) != key("auto", gpu=False)
    assert key("cpu", gpu=True) == key("cpu", gpu=False)
    assert key("cpu", gpu=False) != key("auto", gpu=False)


def test_canonical_follows_content_and_not_the_path_of_a_file(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.npz").write_bytes(b"same")
    one, two = (canonical_json(tmp_path / folder / "x.npz") for folder in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "x.npz").write_bytes(b"other")
    assert canonical_json(tmp_path / "two" / "x.npz") != one


def test_canonical_ignores_where_an_artifact_lies_and_minds_the_order_of_models() -> None:
    assert canonical_json(ARTIFACT.replace(path="cd/model.onnx")) == canonical_json(ARTIFACT)
    assert canonical_json({"a": ARTIFACT, "b": None}) != canonical_json({"b": None, "a": ARTIFACT})


def test_canonical_refuses_what_has_no_content() -> None:
    with pytest.raises(TypeError, match="object"):
        canonical_json({"session": object()})


def test_code_of_a_stage_holds_its_helpers_and_the_packages_that_it_uses() -> None:
    code = code_digests(train.__module__, TorchTraining.__module__)
    ours = {"tasks.train", "frameworks.torch.network", "gauntlet.datasets.golden", TorchTraining.__module__}
    assert ours <= set(code["code"])
    assert {"torch", "torchvision", "numpy"} <= set(code["packages"])
    assert "tasks.quantize" not in code["code"]
    assert "torch" not in code_digests(quantize.__module__)["packages"]
    assert {"protobuf", "numpy"} <= set(code_digests(quantize.__module__)["packages"])  # onnx imports them


@pytest.mark.parametrize(
    ("part", "module"),
    [
        ("correction", quantize.__module__),
        ("extra", "tasks.data"),
        ("problem", "gauntlet.problems"),
        ("ordered", "tasks.numerics"),  # by `gauntlet.metrics.output_comparison`
    ],
)
def test_code_of_a_stage_holds_what_it_finds_by_entry_points(
    monkeypatch: pytest.MonkeyPatch, part: str, module: str
) -> None:
    """Else a result would outlive a change of the wing that helped to make it."""
    points = (EntryPoint(f"{part}.of-another-package", "yaml:safe_load", "gauntlet.kinds"),)
    monkeypatch.setattr("flows.record.cache_key.points", lambda: points)
    monkeypatch.setattr("flows.record.cache_key._read", _read.__wrapped__)
    assert "pyyaml" in code_digests.__wrapped__(module)["packages"]
    points = (EntryPoint("section.of-another-package", "yaml:safe_load", "gauntlet.kinds"),)
    assert "pyyaml" not in code_digests.__wrapped__(module)["packages"]


class BroughtTarget(BaseTarget):
    kind: Literal["brought"] = "brought"
    env: str | None = None
    engine: ClassVar[str] = "brought_engine"


class Raced(Frozen):
    targets: tuple[BroughtTarget, ...]


def raced(env: Path | None = None) -> str:
    code_digests.cache_clear()  # as in another process
    return cache_key(benchmark, Raced(targets=(BroughtTarget(env=env and str(env)),)), {})


def test_race_is_other_work_when_the_engine_of_a_target_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    keys = set()
    for answer in (1, 2):
        (tmp_path / "brought_engine.py").write_text(f"answer = {answer}")
        keys.add(raced())
    assert len(keys) == 2
    assert "gauntlet.runtime.engines.ort" in {*modules_of(BenchmarkConfig())}


def test_race_is_other_work_when_a_package_of_a_target_s_environment_changes(tmp_path: Path) -> None:
    installed = tmp_path / "lib/python3.11/site-packages"
    keys = {raced(tmp_path)}
    for version in (1, 2):
        (installed / f"runtime-{version}.dist-info").mkdir(parents=True)
        keys.add(raced(tmp_path))
    assert len(keys) == 3


def test_code_of_a_stage_holds_that_of_other_packages_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("flows.record.cache_key._read", _read.__wrapped__)
    points = (EntryPoint("problem.brought", "brought_problem:kind", "gauntlet.kinds"),)
    monkeypatch.setattr("flows.record.cache_key.points", lambda: points)
    digests = set()
    for answer in (1, 2):
        (tmp_path / "brought_problem.py").write_text(f"answer = {answer}")
        digests.add(code_digests.__wrapped__("gauntlet.problems")["code"]["brought_problem"])
    assert len(digests) == 2


@pytest.mark.slow
def test_what_is_read_for_a_key_is_what_python_reads() -> None:  # whose parser a run would wait for
    project = Path(__file__).parents[3]
    for path in (path for name in OUR_PACKAGES for path in (project / name).rglob("*.py")):
        assert imports_in(path.read_text()) == imported_modules(path.read_bytes()), path
    known = packages_distributions()
    known.pop("LICENSE", None)  # of Python 3.13: a file without a suffix counts
    assert {name: {*brought} for name, brought in installed_packages().items()} == {n: {*known[n]} for n in known}


def test_package_of_compiled_code_alone_is_a_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fast-1.dist-info").mkdir()
    (tmp_path / "fast-1.dist-info" / "METADATA").write_text("Name: fast")
    files = ("_fast.cpython-311-x86_64-linux-gnu.so", "fastest/core.pyd", "fast.libs/libm.so", "../bin/fast.py")
    (tmp_path / "fast-1.dist-info" / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in files))
    monkeypatch.syspath_prepend(tmp_path)
    brought = installed_packages.__wrapped__()
    assert {name for name in brought if "fast" in brought[name]} == {"_fast", "fastest"}


def test_packages_of_the_export_hold_what_the_dynamo_exporter_translates_with() -> None:
    assert {"onnxscript", "onnx-ir"} <= set(code_digests(export.__module__, Dynamo.__module__)["packages"])


def test_work_key_differs_between_versions_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key(train, None, {})
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    assert cache_key(train, None, {}) != before
