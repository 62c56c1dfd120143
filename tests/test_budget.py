"""The size of the project is a budget, which only falls: `budget.toml` holds it, and a number above it fails."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from configs.schema import PipelineConfig

PROJECT = Path(__file__).parents[1]
CORE, WINGS = ("configs", "flows", "gauntlet", "tasks"), ("frameworks", "serving", "wings")


def lines(folders: Iterable[str]) -> int:
    """Return the lines of Python files in folders; those that are not there have none."""
    files = (path for folder in folders for path in (PROJECT / folder).rglob("*.py"))
    return sum(path.read_bytes().count(b"\n") for path in files)


def configuration_fields() -> int:
    """Return the fields of all classes that a configuration may hold."""
    schema = PipelineConfig.model_json_schema()
    return sum(len(part.get("properties", {})) for part in (schema, *schema["$defs"].values()))


def sizes() -> dict[str, int]:
    return {
        "product_lines": lines((*CORE, *WINGS)),
        "core_lines": lines(CORE),
        "test_lines": lines(["tests"]),
        "benchmark_lines": lines(["benchmarks"]),
        "configuration_fields": configuration_fields(),
    }


def over_budget(current: Mapping[str, int], budget: Mapping[str, int]) -> list[str]:
    """Return a line for each number above its budget."""
    return [f"{name}: {size} of {budget[name]}" for name, size in current.items() if size > budget[name]]


def test_project_is_within_its_budget() -> None:
    assert not over_budget(sizes(), tomllib.loads((PROJECT / "budget.toml").read_text()))
