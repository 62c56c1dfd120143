"""One real bundle of the trained digits model for all tests of a file."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bundles import confirmation, gate, make_keys, pack, run_report, stage_entry

from gauntlet.bundle.delivery import deliver
from gauntlet.core.report import Check
from gauntlet.core.workspace import Workspace

if TYPE_CHECKING:
    from conftest import Trained


def digits_report(trained: "Trained") -> object:
    check = Check.of("accuracy.max_drop", 0.001, "<=", 0.01)
    unsure = Check.of("portability.worst", 3.0, "<=", 1.0, severity="warning")
    stages = tuple(stage_entry(report) for report in (trained.data, trained.train, trained.export))
    stages += (gate("accuracy", "static-u8s8", check), gate("portability", "static-u8s8", unsure))
    stages += (gate("accuracy", "another", check),)
    return run_report(trained.model, "static-u8s8", stages)


@pytest.fixture(scope="session")
def packed(trained: "Trained", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `.zip` file; copy it before changing it."""
    space = Workspace(trained.store, tmp_path_factory.mktemp("package"))
    done = pack(space, trained.model, trained.golden, report=digits_report(trained), final=confirmation("static-u8s8"))
    done.raise_if_blocked()
    target = tmp_path_factory.mktemp("packed") / "digits.zip"
    shutil.copyfile(trained.store.path(done.artifacts["bundle"]), target)
    return target


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private and a public key."""
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="session")
def signed(packed: Path, keys: tuple[Path, Path]) -> Path:
    """The same bundle, signed, as a `.zip`."""
    target = packed.with_name("signed.zip")
    deliver(packed, target, keys[0])
    return target


@pytest.fixture
def folder(signed: Path, tmp_path: Path) -> Path:
    """A signed bundle as a folder, which a test may change."""
    shutil.unpack_archive(signed, tmp_path / "digits")
    return tmp_path / "digits"
