"""What docs/sources.md tells people to type is what works."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.load import load
from flows.cli import parser

TEXT = (Path(__file__).parents[1] / "docs" / "sources.md").read_text()


def commands() -> Iterator[tuple[list[str], str]]:
    """Yield each command of the page, and the YAML that stands above it: what the page calls mine.yaml."""
    written = ""
    for language, block in re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL):
        written = block if language == "yaml" else written
        for line in block.replace("\\\n", " ").splitlines():
            if language == "console" and line.startswith(".venv/bin/gauntlet "):
                yield shlex.split(line, comments=True)[1:], written


COMMANDS = list(commands())
RUNS = [words for words, _ in COMMANDS if words[0] == "run"]


def test_every_kind_of_source_has_a_command() -> None:
    assert len(RUNS) >= 12
    assert {words[1] for words in RUNS} >= {"bring-your-own-onnx", "cifar10-resnet18", "image-folder-mobilenet"}


@pytest.mark.parametrize(("words", "written"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_command_parses_and_its_configuration_is_valid(words: list[str], written: str, tmp_path: Path) -> None:
    options = parser().parse_args(words)
    if words[0] not in ("run", "validate"):
        return
    (tmp_path / "mine.yaml").write_text(written)
    config = str(tmp_path / "mine.yaml") if options.config == "mine.yaml" else options.config
    load(config, tuple(options.set))


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_configuration_is_valid(block: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(block)
    load(str(tmp_path / "mine.yaml"))
