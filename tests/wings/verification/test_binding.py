"""Evidence counts for the model that it is about, and where a policy asks for a signature, for no other bundle."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundles import make_keys
from evidence import seal_with_evidence
from loaded_modules import modules_after

import gauntlet
from flows.cli.main import main
from gauntlet.bundle.bundle import CONTRACT, GOLDEN, MODEL, Bundle, seal
from gauntlet.bundle.delivery import deliver
from gauntlet.bundle.trust import TRUSTED_KEYS
from gauntlet.core.errors import ConfigError
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from wings.verification.library.verification import verify


@pytest.fixture
def forged(packed: Path, tmp_path: Path) -> Path:
    """A bundle with a negated model, its own golden outputs, and the evidence of the genuine one."""
    folder = tmp_path / "forged"
    shutil.unpack_archive(packed, folder)
    proto = onnx.load(folder / MODEL)
    weights = next(tensor for tensor in proto.graph.initializer if len(tensor.dims) > 1)
    weights.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weights), weights.name))
    onnx.save(proto, folder / MODEL)
    golden = Bundle.open(folder).golden()
    outputs = batched_inference(open_session(folder / MODEL), golden.inputs).run(8)
    named = {"inputs": golden.inputs, "outputs": outputs}
    np.savez(folder / GOLDEN, **{f"{group}/{k}": v for group, arrays in named.items() for k, v in arrays.items()})
    seal(folder)
    return folder


def with_another_subject(folder: Path) -> None:
    statement = json.loads((folder / "provenance" / "slsa.json").read_text())
    statement["subject"] = [{"name": "weights", "digest": {"sha256": "0" * 64}}]
    (folder / "provenance" / "slsa.json").write_text(json.dumps(statement))


def test_evidence_of_another_model_is_damage(forged: Path) -> None:
    damage = verify(forged).damage
    assert "provenance/slsa.json: it is about another model.onnx than the one in the bundle" in damage
    assert "provenance/slsa.json: it is about another golden.npz than the one in the bundle" in damage
    with pytest.raises(ConfigError, match="it is about another"):
        gauntlet.load(forged)
    seal_with_evidence(forged)
    assert verify(forged).passed


def test_contract_of_another_model_is_damage(folder: Path) -> None:
    """Labels, preprocessing and the tolerance of golden outputs are what its own run proved."""
    contract = json.loads((folder / CONTRACT).read_text())
    contract["signature"]["labels"].reverse()
    (folder / CONTRACT).write_text(json.dumps(contract))
    seal(folder)
    assert "provenance/slsa.json: it is about another contract.json than the one in the bundle" in verify(folder).damage


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: shutil.rmtree(folder / "provenance"),
        with_another_subject,
        lambda folder: (folder / "provenance" / "slsa.json").write_text("[" * 100_000),
    ],
    ids=["none", "another subject", "unreadable"],
)
def test_report_that_nothing_binds_to_the_model_is_damage(folder: Path, change: Callable[[Path], None]) -> None:
    change(folder)
    seal(folder)
    damage = verify(folder).damage
    assert "model.onnx: provenance/slsa.json does not say that it belongs to this report" in damage


def test_where_keys_are_trusted_only_bundles_signed_by_them_are_used(
    packed: Path, signed: Path, keys: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, other = make_keys(tmp_path)
    monkeypatch.setenv(TRUSTED_KEYS, f"{other}:{keys[1]}")
    gauntlet.load(signed)
    deliver(packed, tmp_path / "foreign.zip", private)
    gauntlet.load(tmp_path / "foreign.zip")
    monkeypatch.setenv(TRUSTED_KEYS, str(keys[1]))
    for refused in (packed, tmp_path / "foreign.zip"):
        with pytest.raises(ConfigError, match="no signature by a key of GAUNTLET_TRUSTED_KEYS"):
            gauntlet.load(refused)


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
    loaded = modules_after(f"from flows.cli.main import main; assert main(['verify', {str(packed)!r}]) == 0")
    assert not {"torch", "prefect", "mlflow", "sklearn", "matplotlib", "tensorflow", "jax"} & loaded
