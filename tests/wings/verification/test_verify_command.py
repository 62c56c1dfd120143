"""`gauntlet verify` as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli.main import main
from gauntlet.bundle.bundle import Bundle


def test_verified_bundle_and_a_damaged_one(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(signed), "--key", str(keys[1])]) == 0
    out = capsys.readouterr().out
    for words in ("unchanged", "signature: valid", "golden output logits", "not proven here: accuracy", "Verified: "):
        assert words in out
    assert main(["verify", str(signed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == Bundle.open(signed).digest
    damaged = bytearray(signed.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.zip").write_bytes(damaged)
    assert main(["verify", str(tmp_path / "damaged.zip")]) == 1
    out = capsys.readouterr().out
    assert ("damaged: " in out, "Not verified: " in out) == (True, True)


@pytest.mark.parametrize(
    "arguments", [["nothing.zip"], ["{signed}", "--key", "nothing.pem"], ["{signed}", "--key", "{signed}"]]
)
def test_verify_refuses_invalid_arguments(
    signed: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["verify", *(argument.format(signed=signed) for argument in arguments)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_command_loads_neither_servers_nor_frameworks(packed: Path) -> None:
    call = f"from flows.cli.main import main; assert main(['verify', {str(packed)!r}]) == 0"
    code = f"import sys; {call}; print('\\n', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not {"torch", "prefect", "mlflow", "sklearn", "matplotlib", "tensorflow", "jax"} & loaded
