"""`gauntlet trust`: whose signatures bundles need in this home."""

import re
from pathlib import Path

import pytest
from bundles import make_keys

import gauntlet
from flows.cli.main import main
from gauntlet.bundle.trust import TRUSTED_KEYS, policy_file

Text = pytest.CaptureFixture[str]


def told(capsys: Text, *words: object) -> str:
    assert main(["trust", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def trusted_key(keys: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    assert main(["trust", "add", str(keys[1])]) == 0
    return keys[1]


def test_until_the_last_key_is_removed_bundles_need_a_signature(
    packed: Path, signed: Path, trusted_key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text
) -> None:
    assert policy_file().stat().st_mode & 0o777 == 0o600
    other = make_keys(tmp_path)[1].rename(tmp_path / "other.pem")
    told(capsys, "add", other)
    listed = re.findall(r"(?m)^(\w{16})  (.+)$", told(capsys, "add", other))
    assert [name for _, name in listed] == [trusted_key.name, "other.pem"]
    gauntlet.load(signed)
    assert main(["predict", str(packed), "-"]) == 2
    assert main(["trust", "remove", ""]) == main(["trust", "remove", "zz"]) == 2
    assert "no signature by a key of" in capsys.readouterr().err
    told(capsys, "remove", listed[0][0])
    with pytest.raises(gauntlet.ConfigError, match="no signature by a key of"):
        gauntlet.load(signed)
    monkeypatch.setenv(TRUSTED_KEYS, str(trusted_key))
    gauntlet.load(signed)
    assert f"a key of {TRUSTED_KEYS} ({trusted_key}) has signed" in told(capsys)
    monkeypatch.delenv(TRUSTED_KEYS)
    assert "every bundle is used" in told(capsys, "remove", listed[1][0])
    gauntlet.load(packed)


@pytest.mark.parametrize("damage", [r".+", r"(?<=BEGIN)", r"\}\s*$", r"[^{}]+"])
def test_damaged_policy_closes_the_door(damage: str, signed: Path, trusted_key: Path, capsys: Text) -> None:
    policy_file().write_text(re.sub(f"(?s){damage}", " " if "BEGIN" in damage else "", policy_file().read_text()))
    with pytest.raises(gauntlet.ConfigError, match="so no bundle is used"):
        gauntlet.load(signed)
    for words in (["list"], ["add", str(trusted_key)], ["remove", "a"]):
        assert main(["trust", *words]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "whom to trust cannot be read" in line
