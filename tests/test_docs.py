"""The commands of the README run, its links lead somewhere, and its promises about files hold."""

import re
import shlex
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from harness import command
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def gauntlet_commands() -> list[list[str]]:
    lines = [line.partition("#")[0].strip() for block in blocks("console") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith(".venv/bin/gauntlet")]


def test_readme_names_the_make_targets_that_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    named = {line.split()[1] for block in blocks("console") for line in block.splitlines() if line.startswith("make ")}
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "gauntlet run digits-resnet18" in makefile


def test_readme_shows_every_command_and_each_parses() -> None:
    from flows.cli import parser

    commands = gauntlet_commands()
    shown = {"run", "validate", "show", "ui", "sync", "diagnose", "inspect", "bench", "targets"}
    assert {words[0] for words in commands} == shown
    for words in commands:
        parser().parse_args(words)


@pytest.mark.parametrize("words", [w for w in gauntlet_commands() if w[0] in ("validate", "sync")], ids=" ".join)
def test_readme_command_that_needs_no_run_works(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    done = command(tmp_path, *words)
    assert done.returncode == 0, done.stderr


def test_readme_configurations_are_valid() -> None:
    from configs.schema import PipelineConfig

    for block in blocks("yaml"):
        PipelineConfig.model_validate(yaml.safe_load(block))


@pytest.mark.parametrize(
    "page", [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_page_links_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_constraints_pin_every_package_exactly_and_name_no_host() -> None:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in lines if line), lines
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values()), "jax2onnx"]
    assert {canonicalize_name(Requirement(line).name) for line in asked} <= pinned
