"""Packages, wings and extras are found by their names, and one that is broken is named."""

import importlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pydantic import ValidationError, create_model

import gauntlet
from configs.loader import load
from flows.cli.main import extras
from gauntlet.core.errors import PROJECT, ConfigError, install_command
from gauntlet.core.frozen import Frozen
from gauntlet.core.kinds import FOLDER, GROUP, is_brought, kinds, points, removed
from gauntlet.core.shipping import configured_stages, with_shipping_keys


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    def installed(package: str, brought: dict[str, str], code: str | None = "") -> None:
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[{GROUP}]", *(f"{name} = {value}" for name, value in brought.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        if code is not None:
            (tmp_path / f"{package}.py").write_text(code)

    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    kinds.cache_clear()
    points.cache_clear()
    yield installed
    kinds.cache_clear()
    points.cache_clear()
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_what_packages_bring_is_returned_by_name(install) -> None:
    install("kinds_b", {"shape.square": "kinds_b:SQUARE", "colour.red": "kinds_b:RED"}, "SQUARE, RED = 4, 'r'")
    install("kinds_a", {"shape.circle": "kinds_a:CIRCLE"}, "CIRCLE = 0")
    assert list(kinds("shape").items()) == [("circle", 0), ("square", 4)]
    assert kinds("weight") == {}


def test_folder_that_was_removed_is_passed_over_and_named(install) -> None:
    install("kinds_c", {"shape.gone": "kinds_c.wing:SHAPE", "runner.lost": "kinds_c.wing:Runner"}, None)
    assert kinds("shape") == {}
    assert not is_brought("shape")
    fix = "is in kinds_c.wing, which is not there. Fix: install kinds_c with that folder"
    assert removed("shape.*") == f"shape.gone {fix}"
    with pytest.raises(ConfigError, match=f"runner.kind: lost .allowed: .*; runner.lost {fix}"):
        load("digits-small-cnn", ("runner.kind=lost",))


def test_key_of_a_stage_that_was_removed_is_refused_with_the_folder_to_install(install) -> None:
    install("kinds_g", {"shipping.weigh": "kinds_g.wing:WEIGH"}, None)
    fix = "which is not there. Fix: install kinds_g with that folder$"
    with pytest.raises(ConfigError, match=f"yaml: weigh: shipping.weigh is in kinds_g.wing, {fix}"):
        load("digits-small-cnn", ("weigh.max_kg=1",))


def test_stage_that_a_package_brings_has_a_key_and_runs_where_it_is_set(install) -> None:
    code = """
        from pydantic import Field
        from gauntlet.core.shipping import ShippingStage
        WEIGH = ShippingStage(lambda config: None, "bundle", float, Field(0.0), {}, before="name")
    """
    install("kinds_h", {"shipping.max_kg": "kinds_h:WEIGH"}, textwrap.dedent(code))
    kind = with_shipping_keys(create_model("Run", __base__=Frozen, name=(str, "")))
    assert [*kind.model_fields][:2] == ["max_kg", "name"]
    assert list(configured_stages(kind(max_kg=1), "bundle")) == ["max_kg"]
    assert not configured_stages(kind(max_kg=1), "winner")
    assert not configured_stages(kind(), "bundle")


def test_package_that_lacks_another_module_is_named(install) -> None:
    install("kinds_d", {"shape.broken": "kinds_d:SHAPE"}, "import no_such_module")
    with pytest.raises(ConfigError, match=r"kinds_d: its entry point shape\.broken .*no_such_module"):
        kinds("shape")


def test_name_that_two_packages_bring_is_refused(install) -> None:
    install("kinds_e", {"shape.same": "kinds_e:SHAPE"}, "SHAPE = 1")
    install("kinds_f", {"shape.same": "kinds_f:SHAPE"}, "SHAPE = 2")
    with pytest.raises(ConfigError, match="two packages bring the shape 'same'"):
        kinds("shape")


def test_kind_may_import_the_module_of_the_model_that_holds_it(install, tmp_path: Path) -> None:
    text = """
        from typing import Annotated
        from gauntlet.core.frozen import Frozen
        from gauntlet.core.unions import OneOf
        class Shape(Frozen):
            kind: str
        class Drawing(Frozen):
            shape: Annotated[Shape, OneOf("shape")]
    """
    (tmp_path / "drawings.py").write_text(textwrap.dedent(text))
    code = """
        from typing import Literal
        from drawings import Shape
        class {name}(Shape):
            kind: Literal["{kind}"] = "{kind}"
    """
    for name, kind in (("Square", "square"), ("Circle", "circle")):
        code_of = textwrap.dedent(code).format(name=name, kind=kind)
        install(f"kinds_{kind}", {f"shape.{kind}": f"kinds_{kind}:{name}"}, code_of)
    square = importlib.import_module("kinds_square").Square
    drawing = importlib.import_module("drawings").Drawing
    assert drawing.model_validate({"shape": {"kind": "square"}}).shape == square()
    assert drawing.model_validate({"shape": {"kind": "circle"}}).shape.kind == "circle"
    with pytest.raises(ValidationError, match="expected tags: 'circle', 'square'"):
        drawing.model_validate({"shape": {"kind": "cube"}})


def test_function_of_a_removed_wing_names_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = EntryPoint("function.run", "wings.nowhere.functions:run", GROUP)
    monkeypatch.setattr("gauntlet.core.kinds.points", lambda: (gone,))
    kinds.cache_clear()
    with pytest.raises(ConfigError, match=r"gauntlet\.run: function\.run is in wings\.nowhere\.functions, which"):
        gauntlet.run("model.onnx")
    kinds.cache_clear()


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


STARTS = (("-m", "gauntlet", "--version"), ("-c", "import gauntlet; gauntlet.show()"))


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(FOLDER)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", STARTS, ids=("command", "python"))
@pytest.mark.parametrize("file", ["flows.py", "tasks/__init__.py"])
def test_module_imported_in_place_of_ours_is_named(tmp_path: Path, file: str, words: tuple[str, ...]) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    done = start(tmp_path, *words)
    assert f"{path}: Python imports it in place of onnx-gauntlet's package {file[:5]!r}. Fix: rename it" in done.stderr
    assert done.returncode in (1, 2)


def test_folder_without_init_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.py").touch()
    done = start(tmp_path, *STARTS[0])
    assert (done.returncode, done.stderr) == (0, "")
