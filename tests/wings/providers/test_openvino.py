"""OpenVINO: its names and precisions, and that `deploy_targets: auto` adds it where it is installed."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from configs.loader import load
from configs.schema import PipelineConfig
from gauntlet.runtime.processor import Processor
from gauntlet.targets import by_name, default_targets, environments, installed_targets
from gauntlet.targets.environments import NOTE
from wings.providers.openvino import ENVIRONMENT, OpenVino

AUTO = ("benchmark.deploy_targets=auto",)
ADDED = ["openvino-f32", *(["openvino-bf16"] if Processor.current().has_bf16 else [])]


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))


@pytest.fixture
def openvino() -> None:
    """The note that a complete installation leaves; nothing here runs it."""
    place = environments.folder("openvino")
    place.mkdir(parents=True)
    (place / NOTE).write_text(ENVIRONMENT.note)


def names(config: PipelineConfig) -> tuple[list[str], list[str]]:
    return [target.name for target in config.benchmark.targets], list(config.benchmark.deploy_targets)


def test_environment_of_other_versions_is_not_taken_for_installed(openvino: None) -> None:
    (environments.folder("openvino") / NOTE).write_text("{}")
    assert names(load("digits-small-cnn", AUTO)) == (["ort-cpu"], [])


@pytest.mark.usefixtures("openvino")
def test_installed_runtime_takes_part_and_has_a_recipe_of_its_own() -> None:
    config = load("digits-small-cnn", (*AUTO, "quantize=auto"))
    assert names(config) == (["ort-cpu", *ADDED], ADDED)
    assert any(recipe.name.endswith("-inputs") for recipe in config.quantize)
    assert PipelineConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("listed", ["openvino-f32", "{kind: openvino, precision: f32}"])
def test_runtime_that_is_listed_already_is_not_listed_twice(listed: str) -> None:
    config = load("digits-small-cnn", (*AUTO, f"benchmark.targets=[ort-cpu, ort-openvino-f32, {listed}]"))
    assert names(config) == (["ort-cpu", "ort-openvino-f32", *ADDED], ADDED)


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize(("flags", "precisions"), [(set(), ["f32"]), ({"avx512_bf16"}, ["f32", "bf16"])])
def test_runtime_computes_in_what_the_processor_multiplies(
    flags: set[str], precisions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processor, "current", lambda: Processor("x86_64", frozenset(flags)))
    assert [target.declared_precision for target in installed_targets()] == precisions


def test_name_tells_targets_apart_that_compute_otherwise() -> None:
    targets = [OpenVino(), OpenVino(device="GPU"), OpenVino(properties={"A": "1"}), OpenVino(properties={"A": "2"})]
    assert len({target.name for target in targets}) == len(targets)


def test_target_computes_in_what_its_name_says() -> None:
    target = OpenVino(properties={"INFERENCE_PRECISION_HINT": "bf16"})
    assert target.name == "openvino-f32-INFERENCE_PRECISION_HINT=bf16"
    assert target.options()["properties"] == {"INFERENCE_PRECISION_HINT": "bf16"}


def test_property_that_the_benchmark_sets_is_refused() -> None:
    message = r"properties\.INFERENCE_NUM_THREADS: benchmark\.threads sets it; remove it here"
    with pytest.raises(ValidationError, match=message):
        OpenVino(properties={"INFERENCE_NUM_THREADS": "2"})


def test_kind_alone_means_its_default() -> None:
    assert by_name("openvino") == OpenVino(precision="f32")


def test_precision_is_always_pinned_except_where_its_lack_is_the_point() -> None:
    hints = {t.precision: t.options()["properties"] for t in default_targets() if isinstance(t, OpenVino)}
    assert hints.pop("default") == {}
    assert {name: hint["INFERENCE_PRECISION_HINT"] for name, hint in hints.items()} == {
        "f32": "f32", "bf16": "bf16", "f16": "f16", "int8": "f32",
    }  # fmt: skip
