"""The files that a user's function depends on, wherever they are."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gauntlet.core.user_code import UserFunction, code_files, installed_packages, source_files
from tasks.optimize.graph_pass import PythonPass

Dynamo = pytest.importorskip("frameworks.torch.dynamo").Dynamo
TorchScript = pytest.importorskip("frameworks.torch.torchscript").TorchScript

Files = Callable[[Path, str], tuple[Path, ...]]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python imports from, outside of the code folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def pass_files(folder: Path, name: str) -> tuple[Path, ...]:
    return PythonPass(function=name, code_folder=folder).files()


def dynamo_files(folder: Path, name: str) -> tuple[Path, ...]:
    return Dynamo(custom_translation_table=UserFunction(function=name, code_folder=folder)).files()


def torchscript_files(folder: Path, name: str) -> tuple[Path, ...]:
    return TorchScript(custom_symbolics=UserFunction(function=name, code_folder=folder)).files()


@pytest.mark.parametrize("files", [pass_files, dynamo_files, torchscript_files])
def test_function_outside_of_the_code_folder_has_its_source(files: Files, tmp_path: Path, elsewhere: Path) -> None:
    (elsewhere / "far_passes.py").write_text("import far_helpers\ndef fuse(model): return model")
    (elsewhere / "far_helpers.py").write_text("width = 8")
    assert files(tmp_path, "far_passes:fuse") == (elsewhere / "far_helpers.py", elsewhere / "far_passes.py")


@pytest.mark.parametrize("files", [pass_files, dynamo_files, torchscript_files])
def test_function_of_an_installed_package_has_its_version(files: Files, tmp_path: Path) -> None:
    (path,) = files(tmp_path, "numpy.linalg:norm")
    assert path.name == "METADATA"
    assert path.parent.name.startswith("numpy-")


def test_source_in_the_code_folder_brings_what_it_imports_from_elsewhere(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "nets.py").write_text("import json\nimport numpy as np\nfrom far_package.blocks import block")
    (elsewhere / "far_package").mkdir()
    for name in ("__init__", "blocks", "unused"):
        (elsewhere / "far_package" / f"{name}.py").write_text("")
    paths = code_files(tmp_path, "nets:make")
    expected = {"nets.py", "elsewhere/far_package/__init__.py", "elsewhere/far_package/blocks.py"}
    assert {path.relative_to(tmp_path).as_posix() for path in paths if path.name != "METADATA"} == expected
    assert [path.parent.name.partition("-")[0] for path in paths if path.name == "METADATA"] == ["numpy"]
    assert source_files(tmp_path, "nets:make") == (tmp_path / "nets.py",)


@pytest.mark.parametrize("how", ['"dir_info":{"editable":true}', '"dir_info": {}'], ids=["editable", "copied"])
def test_package_of_a_local_folder_has_its_source_too(tmp_path: Path, elsewhere: Path, how: str) -> None:
    """Its code changes more often than its version."""
    name = "copied" if how.endswith("{}") else "edited"
    note = elsewhere / f"{name}-1.dist-info"
    note.mkdir()
    (elsewhere / f"{name}.py").write_text("")
    (note / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (note / "direct_url.json").write_text(f'{{"url":"file:///folder",{how}}}')
    (note / "RECORD").write_text("".join(f"{note.name}/{file},,\n" for file in ("METADATA", "direct_url.json")))
    (note / "top_level.txt").write_text(name)
    installed_packages.cache_clear()
    try:
        assert code_files(tmp_path, f"{name}:make") == (note / "METADATA", elsewhere / f"{name}.py")
    finally:
        installed_packages.cache_clear()
