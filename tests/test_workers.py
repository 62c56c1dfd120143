from pathlib import Path

import pytest
from workers import made_once


def test_folder_is_made_once_and_again_only_when_it_was_not_finished(tmp_path_factory: pytest.TempPathFactory) -> None:
    calls: list[int] = []

    def make(folder: Path) -> None:
        calls.append(len([*folder.iterdir()]))
        (folder / "half").touch()
        if len(calls) == 1:
            raise OSError("the disk is full")

    name = f"made-{tmp_path_factory.mktemp('unique').parent.name}"
    with pytest.raises(OSError, match="full"):
        made_once(tmp_path_factory, name, make)
    folder = made_once(tmp_path_factory, name, make)
    assert made_once(tmp_path_factory, name, make) == folder
    assert calls == [0, 0]  # it begins with an empty folder
