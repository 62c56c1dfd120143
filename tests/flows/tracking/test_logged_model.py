"""What MLflow shows of a run: models as they are stored, images whose class changed, and metrics by legal names."""

from collections.abc import Callable
from pathlib import Path

import mlflow
import numpy as np
import onnx
import onnx_text
import onnxruntime
import pretrained_models
import pytest
from gpu_target import GpuTarget
from mlflow import MlflowClient
from mlflow.models import Model
from mlflow.utils import requirements_utils
from mlflow.utils.validation import _validate_metric_name, _validate_tag
from pretrained_models import Made
from validated_target import OfFramework

from flows.servers.database_templates import copy_template
from flows.tracking.events import note, providers
from flows.tracking.flips import MAX_IMAGES, TABLE, images_of, log_flips
from flows.tracking.logged_model import log_model, save_model
from flows.tracking.metric_names import class_metrics, legal
from flows.tracking.server import tracking_uri
from gauntlet.core.signature import signature_from_graph
from gauntlet.datasets.splits import ArraySplit
from gauntlet.metrics.class_curves import RankedClassScore
from gauntlet.onnx_model.model_file import copy_model
from gauntlet.runtime.processor import portability_metadata
from gauntlet.targets import Target
from gauntlet.targets.ort import OrtCpu
from tasks.evaluate import EvaluateFacts

OPENED = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (GpuTarget(), OPENED),
        (OrtCpu(), ["CPUExecutionProvider"]),
        (OfFramework(), ["CPUExecutionProvider"]),  # not ONNX Runtime, which MLflow loads with
        (None, ["CPUExecutionProvider"]),
    ],
)
def test_model_names_the_provider_that_it_was_measured_on(target: Target | None, expected: list[str]) -> None:
    assert providers(target) == expected


@pytest.mark.parametrize("make", [pretrained_models.two_inputs, pretrained_models.external_data])
def test_logged_model_has_its_weights_and_is_loaded_by_mlflow(tmp_path: Path, make: Callable[[Path], Made]) -> None:
    brought, samples = make(tmp_path)
    stored, database = tmp_path / "store" / "model.onnx", tmp_path / "mlflow.db"
    stored.parent.mkdir()
    copy_model(brought, stored)
    proto = onnx.load(stored, load_external_data=False)
    signature_from_graph(proto).write(proto)
    portability = portability_metadata("needs VNNI", needs_vnni=True, elsewhere="warn")
    onnx.helper.set_model_props(proto, {p.key: p.value for p in proto.metadata_props} | portability)
    onnx.save(proto, stored)
    copy_template("mlflow", database)
    uri = f"sqlite:///{database}"
    with tracking_uri(uri):
        client = MlflowClient(uri)
        experiment = client.create_experiment("brought", (tmp_path / "artifacts").as_uri())
        run = client.create_run(experiment).info.run_id
        named = "brought-static-u8s8-percentile99.99"  # MLflow takes no dot
        model = log_model(run, {"name": named, "params": {}, "tags": {"winner": "true"}, "providers": OPENED}, stored)
        [found] = client.search_logged_models([experiment], "name = 'brought-static-u8s8-percentile99_99'")
        loaded = mlflow.pyfunc.load_model(f"models:/{model}")
        whole = mlflow.onnx.load_model(f"models:/{model}")
    assert found.model_id == model
    assert loaded.metadata.metadata == portability
    assert loaded.metadata.flavors["onnx"]["providers"] == OPENED
    expected = onnx.reference.ReferenceEvaluator(onnx.load(brought)).run(None, samples)
    for name, right in zip((value.name for value in proto.graph.output), expected, strict=True):
        np.testing.assert_allclose(loaded.predict(samples)[name], right, rtol=1e-4, atol=1e-5)
    assert not any(onnx.external_data_helper.uses_external_data(tensor) for tensor in whole.graph.initializer)
    files = [file for file in (tmp_path / "artifacts").rglob("*onnx*") if file.is_file()]
    assert sorted(file.name for file in files) == sorted(file.name for file in stored.parent.iterdir())
    assert not any(file.is_symlink() for file in files)
    assert loaded.metadata.model_size_bytes == sum(file.stat().st_size for file in files)


def test_mlflow_does_not_look_for_every_installed_file_to_log_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(requirements_utils, "_MODULES_TO_PACKAGES", None)
    monkeypatch.setattr("importlib_metadata.packages_distributions", lambda: looked.append("here") or {})
    proto = onnx_text.model("g (float[n,3] x) => (float[n,2] y) <float[3,2] w> { y = MatMul(x, w) }")
    signature_from_graph(proto).write(proto)
    onnx.save(proto, tmp_path / "model.onnx")
    save_model(str(tmp_path / "logged"), Model(), tmp_path / "model.onnx", OPENED)
    assert (looked, requirements_utils._MODULES_TO_PACKAGES) == ([], None)  # nor does it keep ours
    assert f"=={onnxruntime.__version__}" in (tmp_path / "logged" / "requirements.txt").read_text()


def split_of(samples: np.ndarray) -> ArraySplit:
    return ArraySplit({"input": samples}, np.zeros(len(samples), np.int64))


@pytest.mark.parametrize("shape", [(3, 4, 6), (4, 6, 1)])
def test_picture_uses_the_whole_range_in_either_layout(shape: tuple[int, ...]) -> None:
    samples = np.random.default_rng(0).normal(5, 2, (9, *shape)).astype(np.float32)
    last, first = (np.asarray(picture.to_pil()) for picture in images_of(split_of(samples), [8, 0]))
    assert last.shape[:2] == (4, 6)
    assert (last.min(), last.max()) == (0, 255)
    assert not np.array_equal(last, first)


@pytest.mark.parametrize("samples", [np.zeros((3, 5), np.float32), np.zeros((3, 7, 8, 9), np.float32)])
def test_samples_that_are_no_pictures_make_none(samples: np.ndarray) -> None:
    assert images_of(split_of(samples), [0, 2]) == []


def test_table_is_logged_once_and_never_longer_than_a_person_reads(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    path = split_of(np.random.default_rng(0).normal(0, 1, (99, 3, 4, 4)).astype(np.float32)).save(tmp_path, "test")
    flips = [{"image": i, "truth": "one", "before": "one", "after": "two"} for i in range(MAX_IMAGES + 9)]
    with tracking_uri(uri):
        client = MlflowClient(uri)
        experiment = client.create_experiment("mine", (tmp_path / "artifacts").as_uri())
        run = client.create_run(experiment).info.run_id
        for _ in range(2):
            log_flips(client, run, flips, path)
        table = client.load_table(experiment, TABLE, [run])
        pictures = client.list_artifacts(run, f"table_images/{Path(TABLE).stem}")
    assert table["image"].tolist() == list(range(MAX_IMAGES))
    assert set(table["after"]) == {"two"}
    assert len(pictures) == 2 * MAX_IMAGES


def sent_class_metrics(*labels: str) -> dict[str, float]:
    """Return the metrics of these classes by the names that MLflow gets; each has three scores."""
    scores = tuple(RankedClassScore(label=label, precision=0.5, recall=0.25, f1=1 / 3, images=9) for label in labels)
    facts = EvaluateFacts(accuracy=0.5, train_accuracy=None, classes=scores)
    return {legal(name): value for name, value in class_metrics(facts).items()}


def test_class_names_of_any_script_stay_as_they_are() -> None:
    labels = "零一二三四五六七八九"
    metrics = sent_class_metrics(*labels)
    assert len(metrics) == 3 * len(labels)
    assert metrics["class.七.recall"] == 0.25


@pytest.mark.parametrize(
    "labels",
    [
        ("C++", "C#", "C##", "C"),
        ("a/b", "a//b", "/a/b", "a/b/"),
        (".", "..", "/", "_"),
        ("x" * 300, "x" * 301, "x" * 200),
    ],
    ids=["signs", "slashes", "dots", "long"],
)
def test_classes_never_share_a_name_and_mlflow_takes_each(labels: tuple[str, ...]) -> None:
    metrics = sent_class_metrics(*labels)
    assert len(metrics) == 3 * len(labels)
    for name in metrics:
        _validate_metric_name(name)


def test_name_of_a_class_that_mlflow_refuses_is_the_same_beside_other_classes() -> None:
    assert sent_class_metrics("C++").keys() <= sent_class_metrics("C#", "C++").keys()


@pytest.mark.parametrize("rows", [10, 3000])
def test_note_with_the_report_is_as_long_as_mlflow_keeps_it(rows: int) -> None:
    report = "| row |\n" * rows
    assert _validate_tag("mlflow.note.content", note(report)).value == note(report)
    assert (note(report) == report) == (rows == 10)
