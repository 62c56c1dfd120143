"""Every configuration that ships is one that runs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import configs
from configs.loader import load, presets
from configs.schema import PipelineConfig

FILES = sorted(Path(configs.__file__).parent.rglob("*.yaml"))


def test_presets_are_all_files_when_listed() -> None:
    assert {"digits-resnet18", "digits-small-cnn"} <= presets().keys()
    assert set(presets().values()) == {file for file in FILES if file.parent == Path(configs.__file__).parent}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_preset_loads_when_named_by_its_path(file: Path) -> None:
    config = load(str(file))
    written = yaml.safe_load(file.read_text())
    assert config.name == written["name"] == file.stem
    assert part_of(config.model_dump(mode="json"), written) == written


def part_of(told: Any, written: Any) -> Any:
    """Return what the configuration says at every place that the file writes; `auto` becomes a list."""
    if written == "auto":
        assert isinstance(told, list)
        return written
    if isinstance(written, dict):
        return {key: part_of(told[key], value) for key, value in written.items()}
    if isinstance(written, list) and len(written) == len(told):
        return [part_of(a, b) for a, b in zip(told, written, strict=True)]
    return told


@pytest.mark.parametrize("name", presets())
def test_preset_is_the_same_by_name_path_and_json_and_names_each_candidate_once(name: str) -> None:
    config = load(name)
    assert config == load(str(presets()[name]))
    assert config.candidates[0] == "fp32"
    assert len(set(config.candidates)) == len(config.candidates)
    assert PipelineConfig.model_validate_json(config.model_dump_json()) == config
    assert PipelineConfig.model_validate(config.model_dump(mode="json")) == config
