"""Every configuration that ships is one that runs."""

import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from urllib.request import url2pathname

import jsonschema
import needs
import pytest
import yaml

import configs
from configs.loader import SCHEMA_FILE, load, presets, written
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


def schema_for(file: Path) -> Any:
    """Return the schema that an editor finds by a configuration's first line, without a network."""
    address = file.read_text().partition("\n")[0].removeprefix("# yaml-language-server: $schema=")
    found = Path(url2pathname(urljoin(file.resolve().as_uri(), address).removeprefix("file://")))
    assert found == SCHEMA_FILE.resolve()
    return json.loads(found.read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_preset_names_the_schema_by_which_it_is_valid(file: Path) -> None:
    jsonschema.validate(yaml.safe_load(file.read_text()), schema_for(file))


def test_written_configuration_names_the_schema_which_refuses_a_misspelled_key(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(written({"name": "own", "benchmark": {"rounds": 8}}))
    assert load(str(file)).benchmark.rounds == 8
    jsonschema.validate(yaml.safe_load(file.read_text()), schema_for(file))
    with pytest.raises(jsonschema.ValidationError, match="'round' was unexpected"):
        jsonschema.validate({"name": "own", "benchmark": {"round": 8}}, schema_for(file))


REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "everyday-options.md").read_text()
EXAMPLES = dict(re.findall(r"^\| \[`(.*?)`\].*?\| .*? \| `(.*?)` \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize(("option", "example"), EXAMPLES.items(), ids=EXAMPLES)
def test_example_loads_and_sets_its_option(option: str, example: str, tmp_path: Path) -> None:
    needs.every_wing()
    (tmp_path / "example.yaml").write_text(example)
    config = load(str(tmp_path / "example.yaml"))
    part, _, key = option.rpartition(".")
    assert key in (attrgetter(part)(config) if part else config).model_fields_set


def test_pages_hold_about_25_everyday_options_and_no_internal_one() -> None:
    needs.every_wing()
    schema = PipelineConfig.model_json_schema()
    parts = [part.get("properties", {}) for part in (schema, *schema["$defs"].values())]
    tiers = {tier: {n for part in parts for n in part if part[n].get("tier") == tier} for tier in ("internal", None)}
    rows = set(re.findall(r"^- `(\w+)[:`]", (REFERENCE / "configuration.md").read_text(), re.MULTILINE))
    assert tiers["internal"] - tiers[None]
    assert rows
    assert not rows & (tiers["internal"] - tiers[None])
    assert 20 <= len(EXAMPLES) <= 30
