"""The command that installs an extra works where it is named."""

import re
from pathlib import Path

import pytest

from flows.cli.main import extras
from gauntlet.core.errors import PROJECT, install_command


@pytest.mark.parametrize("extra", sorted({*extras().values(), "store", "video", "signing", "tensorflow"}))
def test_extra_of_a_message_is_a_target_of_the_makefile(extra: str) -> None:
    target = install_command(extra).removeprefix("make ")
    makefile = (PROJECT / "Makefile").read_text()
    [listed] = re.findall(r"^EXTRAS := (.*)$", makefile, re.MULTILINE)
    assert target in listed.split() or re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_image_is_built_again_and_a_wheel_is_installed_with_pip(tmp_path: Path) -> None:
    assert install_command("dask", tmp_path) == "pip install 'onnx-gauntlet[dask]'"
    (tmp_path / "pyproject.toml").touch()
    assert install_command("dask", tmp_path) == "docker compose build, with dask among the EXTRAS of docker/.env"
