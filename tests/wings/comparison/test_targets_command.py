"""`gauntlet targets` as a person meets it."""

import json
from pathlib import Path

import pytest
from harness import called

from gauntlet.targets import by_name
from wings.comparison import targets_command


@pytest.mark.slow
def test_targets_lists_all_of_them_with_their_reasons(tmp_path: Path) -> None:
    done = called(tmp_path, "targets", "--json")
    assert done.returncode == 0, done.stderr
    found = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert found["ort-cpu"]["available"]
    assert "gauntlet targets install openvino" in found["ort-openvino-f32"]["reason"]
    assert all(entry["available"] or entry["reason"] for entry in found.values())


def test_installation_of_an_unknown_environment_is_refused(tmp_path: Path) -> None:
    done = called(tmp_path, "targets", "install", "steam")
    assert done.returncode == 2
    assert "unknown environment 'steam'; available: openvino" in done.stderr


def test_targets_are_a_table_with_a_reason_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(map(by_name, ("ort-cpu", "openvino-bf16", "ort-openvino-f32")))
    monkeypatch.setattr(targets_command, "default_targets", lambda: few)
    done = called(tmp_path, "targets")
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "yes" in lines["ort-cpu"]
    assert "no: its environment is not installed; install it with: gauntlet targets install" in lines["openvino-bf16"]
    assert "no: " in lines["ort-openvino-f32"]
