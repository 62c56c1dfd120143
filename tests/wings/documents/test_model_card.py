"""The bundle's documents and the model card follow their specifications, and say the figures of the run."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from bundles import gate, png, run_report
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import gauntlet
from gauntlet.bundle.bundle import seal
from gauntlet.bundle.contract import BatchLatency, Contract
from gauntlet.bundle.write import CardConfig
from gauntlet.core.artifact import Artifact, sha256_of
from gauntlet.core.errors import ConfigError
from gauntlet.core.frozen import JsonObject
from gauntlet.core.report import Check
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from wings.documents.mlflow_flavor import ScoringModel
from wings.documents.model_card import model_card
from wings.verification.library.verification import verify

MODEL = Artifact(name="model.onnx", sha256="0" * 64, size_bytes=2800, path="00/model.onnx")
IMAGE = TensorSpec(name="input", dtype="float32", shape=("batch", 1, 8, 8))
SCORES = TensorSpec(name="logits", dtype="float32", shape=("batch", 2))
SECTIONS = (
    "Model details", "Uses", "Bias, risks and limitations", "How to get started with the model", "Training details",
    "Evaluation", "Provenance",
)  # fmt: skip


def classes(*recalls: float) -> list[dict[str, Any]]:
    known = {"precision": 0.9, "f1": 0.9}
    return [known | {"label": f"c|{i}", "recall": r, "images": 50 if r else 0} for i, r in enumerate(recalls)]


FACTS: dict[str, JsonObject] = {
    "data": {"images": {"train": 400, "validation": 50, "test": 200}, "near_duplicates": [{}, {}]},
    "train": {
        "framework": "torch 2",
        "architecture": "small-cnn",
        "parameters": 1234,
        "best_epoch": 3,
        "stopped_early": True,
        "history": [{}, {}, {}, {}],
    },
    "evaluate": {
        "classes": classes(0.99, 0.99),
        "fit": {"verdict": "overfitting", "reason": "the gap is large"},
        "cross_validation": {"accuracies": [0.9, 1.0], "mean": 0.95, "low": 0.91, "high": 0.99, "images": 400},
        "ranking": {"macro_roc_auc": 0.9987, "macro_average_precision": 0.98, "curves": []},
        "calibration": {
            "before": {"ece": 0.08, "log_loss": 0.2, "brier_score": 0.1, "bins": []},
            "after": {"ece": 0.02, "log_loss": 0.15, "brier_score": 0.09, "bins": []},
            "temperature": 1.8,
            "fitted_on": "validation",
            "fitted_images": 50,
        },
    },
}
LOST = {"change": {"drop": 0.005, "low": -0.004, "high": 0.014}, "classes": classes(0.8, 0.98, 0.0)}  # none of the last
LOST |= {"temperature": 1.8, "calibration": {"ece": 0.025, "log_loss": 0.16, "brier_score": 0.1, "bins": []}}


def report(**changes: Any) -> RunReport:
    stages = [gate(stage, None).replace(facts=facts) for stage, facts in FACTS.items()]
    warned = Check.of("accuracy.unresolved", 1, "==", 0, "not proven", severity="warning")
    stages.append(gate("accuracy", "static-u8s8", warned).replace(facts=LOST))
    config = {"name": "digits", "data": {"kind": "digits"}}
    return run_report(MODEL, "static-u8s8", tuple(stages), config=config, **changes)


def contract(**changes: Any) -> Contract:
    how = Preprocessing(height=8, width=8, scale=1 / 255, mean=(0.5,), std=(0.5,))
    signature = Signature(inputs=(IMAGE,), outputs=(SCORES,), preprocessing=how, labels=("c|0", "c|1"))
    known = {"name": "digits", "run_id": "run-1", "candidate": "static-u8s8", "signature": signature}
    known |= {"target": "ort-cpu", "latencies": (BatchLatency(batch=1, median_ms=0.5),), "temperature": 1.8}
    return Contract(**{**known, **changes})


def parts(text: str) -> tuple[dict[str, Any], str]:
    """Return the metadata and the Markdown after it."""
    start, metadata, body = text.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(metadata), body


def test_metadata_is_what_the_hub_reads() -> None:
    metadata, _ = parts(model_card(contract(), report(), CardConfig(license="apache-2.0")))
    assert (metadata["license"], metadata["library_name"]) == ("apache-2.0", "onnx")
    assert (metadata["pipeline_tag"], metadata["metrics"]) == ("image-classification", ["accuracy"])
    [result] = metadata["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "accuracy", "value": 0.989}]
    assert result["dataset"] == {"type": "digits", "name": "digits", "split": "test"}


def test_card_has_the_sections_in_order_and_the_figures_with_their_intervals() -> None:
    _, body = parts(model_card(contract(), report()))
    assert [line[3:] for line in body.splitlines() if line.startswith("## ")] == list(SECTIONS)
    for line in (
        "| architecture | small-cnn, 1234 parameters in the source network |",
        "| size | 2.8 kB |",
        "| accuracy | 98.9 % | 96.4 % to 99.7 % |",
        "| accuracy lost against FP32 | 0.0050 | -0.0040 to 0.0140 |",
        "| calibration error, log loss, Brier score of calibrated confidence | 0.0250, 0.1600, 0.1000 |  |",
        "| macro ROC AUC of the source network | 0.9987 |  |",
        "| calibration error, log loss, Brier score of calibrated confidence, source network | 0.0200, 0.1500, 0.0900",
        "| 1 | 0.500 ms | 2.00x | 1.90 to 2.10 |",
        "| c\\|0 | 0.900 | 0.800 | 0.900 | 50 |",
        "- 4 epochs, stopped early; the weights of epoch 3 were kept",
        "- overfitting: the gap is large",
        "- cross-validation on 2 parts of the training split: accuracy 95.0 %, 95 % interval 91.0 % to 99.0 %",
        "- digits: 400 train, 50 validation, 200 test",
    ):
        assert line in body, line


def test_card_says_of_which_race_its_latencies_are_and_what_the_speed_up_is_over() -> None:
    known = report()
    base, won = known.candidates
    base = base.replace(benchmark=(won.benchmark[0].replace(verdict="reference"),))
    changed = known.replace(candidates=(base, won.replace(first_race=won.benchmark)))
    slow = contract(latencies=(BatchLatency(batch=1, median_ms=1234.5),))
    _, body = parts(model_card(slow, changed))
    over = "the speed-up is over the model before optimization, `fp32` on `ort-cpu`:"
    assert f"target `ort-cpu`, in a race alone with the reference; {over}" in body
    assert "| 1 | 1234 ms | 2.00x |" in body  # in no other form than on the page
    _, body = parts(model_card(slow, known.replace(candidates=(base, won))))
    assert f"target `ort-cpu`; {over}" in body


def test_measured_limits_are_named() -> None:
    _, body = parts(model_card(contract(), report()))
    limits = body.partition("## Bias")[2].partition("###")[0]
    assert "calibrated by the temperature 1.8, fitted on 50 samples of the validation split" in limits
    assert "At least 2 test images resemble one of another split" in limits
    assert "The class with the least recall is c\\|0: 0.800 on 50 test samples." in limits
    assert "`accuracy.unresolved` not proven" in limits
    assert "The confidence is not calibrated" in model_card(contract(temperature=None), report())


def test_what_authors_state_is_quoted_and_what_they_do_not_is_said() -> None:
    card = CardConfig(
        intended_use="Sorting mail.", developed_by="Ada", limitations="Only digits.", description="Reads."
    )
    stated = model_card(contract(), report(), card)
    for text in ("Sorting mail.", "| developed by | Ada |", "Only digits.", "\nReads.\n"):
        assert text in stated
    assert "Not stated." not in stated
    assert model_card(contract(), report()).count("Not stated.") == 1


def test_card_of_a_run_without_labels_says_what_is_unknown() -> None:
    bare = run_report(MODEL)
    assert math.isnan(bare.candidates[0].accuracy or math.nan)
    signature = Signature(task="arrays", inputs=(IMAGE,), outputs=(SCORES,))
    metadata, body = parts(model_card(contract(signature=signature, temperature=None), bare))
    assert "model-index" not in metadata
    assert "The data has no labels" in body
    assert 'outputs = predictor.run({"input": samples})' in body
    assert "None" not in body
    assert "\n\n\n" not in body
    assert "preprocessing" not in body
    assert "`model.onnx` alone runs in any ONNX Runtime.\n" in body


def test_card_shows_names_as_they_are_and_every_input_in_its_example() -> None:
    hostile = TensorSpec(name='b "2" `<b>\x1b', dtype="str", shape=("batch",))
    signature = Signature(
        task="arrays", inputs=(IMAGE, hostile), outputs=(SCORES,), labels=("<script>x</script>", "*a*", "a_b")
    )
    _, body = parts(model_card(contract(signature=signature), report()))
    assert "| labels | &lt;script&gt;x&lt;/script&gt;, \\*a\\*, a_b |" in body
    [example] = [line for line in body.splitlines() if line.startswith("outputs = ")]
    assert example == 'outputs = predictor.run({"input": ..., "b \\"2\\" `\\u003cb\\u003e\\u001b": ...})'
    assert '| input `b "2" \'<b>\ufffd` | str, batch |' in body


@pytest.mark.parametrize("key", ["intended_use", "license"])
def test_statement_of_another_type_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        CardConfig.model_validate({key: 7})


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    """A bundle as a folder, which a test may change."""
    shutil.unpack_archive(packed, tmp_path / "digits")
    return tmp_path / "digits"


def test_bill_of_materials_follows_the_schema_of_cyclonedx(folder: Path) -> None:
    text = (folder / "bom.json").read_text()
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert problem is None, str(problem)[:2000]
    card = json.loads(text)["metadata"]["component"]["modelCard"]
    accuracy = card["quantitativeAnalysis"]["performanceMetrics"][0]
    assert (accuracy["type"], accuracy["value"]) == ("accuracy on the test samples", "0.989")


def test_mlflow_scores_images_as_the_predictor_does(folder: Path) -> None:
    import mlflow.pyfunc
    import pandas as pd

    model = mlflow.pyfunc.load_model(str(folder))
    images = [png(number) for number in range(5)]
    expected = [one.model_dump(mode="json") for one in gauntlet.load(folder).predict(images)]
    assert model.predict(pd.DataFrame({"image": images})) == expected
    assert model.metadata.signature.inputs.input_names() == ["image"]


def test_mlflow_scores_arrays_by_name(folder: Path) -> None:
    golden = gauntlet.load(folder).bundle.golden()
    found = ScoringModel(folder).predict({name: array.tolist() for name, array in golden.inputs.items()})
    assert len(found) == len(golden.inputs["input"])


def test_other_values_are_refused_with_what_is_expected(folder: Path) -> None:
    with pytest.raises(ConfigError, match="a column 'image' of bytes; got list"):
        ScoringModel(folder).predict([1, 2])


def test_bill_of_materials_of_another_model_is_damage(folder: Path) -> None:
    bom, digest = folder / "bom.json", sha256_of([folder / "model.onnx"])
    bom.write_text(bom.read_text().replace(digest, "0" * 64))
    seal(folder)
    assert "bom.json: it is about another model.onnx than the one in the bundle" in verify(folder).damage
