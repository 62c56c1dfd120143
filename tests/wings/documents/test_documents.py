"""The bundle's documents follow their specifications, and MLflow scores it as the predictor does."""

import json
import shutil
from pathlib import Path

import pytest
from bundles import png
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import gauntlet
from gauntlet.bundle.bundle import seal
from gauntlet.core.artifact import sha256_of
from gauntlet.core.errors import ConfigError
from wings.documents.mlflow_flavor import ScoringModel
from wings.verification.library.verification import verify


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
