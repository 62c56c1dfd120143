"""The page of everyday options has few, each with an example that loads; internal fields are in no page."""

import re
from operator import attrgetter
from pathlib import Path

import needs
import pytest

from configs.loader import load
from configs.schema import PipelineConfig

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
