"""A flipped byte anywhere in a bundle is found, and the file is named."""

import errno
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from bundles import make_keys
from cryptography.hazmat.primitives.asymmetric import ec
from evidence import seal_with_evidence
from hypothesis import given, settings
from hypothesis import strategies as st

from gauntlet.bundle.bundle import CONTRACT, GOLDEN, Bundle, DamagedBundle, archive, seal
from gauntlet.core.errors import ConfigError
from wings.verification.library.keys import read_private_key
from wings.verification.library.signing import sign
from wings.verification.library.verification import verify

Keys = tuple[Path, Path]


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << int(place * 1e6) % 8
    path.write_bytes(content)


def problems_of(path: Path, key: Path | None = None) -> str:
    result = verify(path, key)
    assert not result.passed
    return "\n".join((*result.damage, *result.failures))


def test_untouched_bundle_is_verified_in_both_forms(signed: Path, folder: Path, keys: Keys) -> None:
    for path in (signed, folder):
        result = verify(path, keys[1])
        assert result.passed, problems_of(path, keys[1])
        assert [one.trusted for one in result.signatures] == [True]
        assert [one.max_rel_error <= result.golden_tolerance for one in result.golden] == [True]


def test_flipped_byte_in_any_file_of_a_folder_is_found_and_the_file_named(folder: Path) -> None:
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        for place in (0.0, 0.31, 0.62, 0.9999):
            flip(path, place)
            assert path.relative_to(folder).as_posix() in problems_of(folder), place
            path.write_bytes(content)
    assert verify(folder).passed


@settings(max_examples=40)
@given(place=st.floats(0, 1, exclude_max=True))
def test_flipped_byte_anywhere_in_a_zip_is_found(signed: Path, place: float) -> None:
    target = signed.with_name("flipped.zip")
    shutil.copyfile(signed, target)
    flip(target, place)
    assert problems_of(target)


def test_flipped_byte_in_any_file_of_a_zip_names_the_file(signed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(signed) as archived:
        infos = archived.infolist()
    content = signed.read_bytes()
    for info in infos:
        start = content.index(info.filename.encode(), info.header_offset) + len(info.filename) + len(info.extra)
        damaged = bytearray(content)
        damaged[start + 20 + info.file_size // 2] ^= 4
        (tmp_path / "x.zip").write_bytes(damaged)
        assert info.filename in problems_of(tmp_path / "x.zip")


def test_flipped_byte_in_the_name_of_the_manifest_is_damage(packed: Path, tmp_path: Path) -> None:
    content = packed.read_bytes()
    damaged = content.replace(b"manifest.json", b"manifesu.json")
    assert damaged != content
    (tmp_path / "x.zip").write_bytes(damaged)
    assert "it has no manifest.json" in problems_of(tmp_path / "x.zip")


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.999])
def test_cut_zip_is_one_line(packed: Path, tmp_path: Path, kept: float) -> None:
    content = packed.read_bytes()
    (tmp_path / "cut.zip").write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    assert "\n" not in problems_of(tmp_path / "cut.zip")


def test_zip_packed_by_another_program_is_told(folder: Path, tmp_path: Path) -> None:
    again = shutil.make_archive(str(tmp_path / "again"), "zip", folder)
    assert "packed by another program" in problems_of(Path(again))


def test_archive_that_would_unpack_to_more_than_it_holds_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("manifest.json", bytes(50_000_000))
    monkeypatch.setattr(zipfile.ZipFile, "extractall", lambda *_: pytest.fail("unpacked"))
    assert "a bundle is not compressed" in problems_of(tmp_path / "bomb.zip")


def test_archive_of_damaged_lzma_is_one_line(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "lzma.zip", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("manifest.json", random.Random(0).randbytes(1000))
        place = 30 + len("manifest.json") + 4  # of the properties, behind the entry's head and their length
    content = bytearray((tmp_path / "lzma.zip").read_bytes())
    content[place : place + 5] = b"\xff" * 5
    (tmp_path / "lzma.zip").write_bytes(content)
    assert "damaged, or not a .zip file" in problems_of(tmp_path / "lzma.zip")


OPENED = """
import sys, time
from pathlib import Path
from gauntlet.bundle.bundle import Bundle

bundle = Bundle.open(Path(sys.argv[1]))
print(bundle.folder, flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_has_unpacked_is_removed_and_nothing_else(packed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", OPENED, str(packed)]
    folders = []
    with ExitStack() as running:
        for _ in range(3):
            process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
            running.enter_context(process)
            running.callback(process.kill)
            assert process.stdout is not None
            folders.append(Path(process.stdout.readline().strip()))
            if len(folders) == 1:
                process.kill()
                process.wait()
                assert folders[0].is_dir()
            os.utime(folders[-1], (0, 0))
        assert [folder.is_dir() for folder in folders] == [False, True, True]


def test_archive_with_a_file_that_its_manifest_does_not_list_is_not_unpacked(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = Path(shutil.copy(packed, tmp_path))
    with zipfile.ZipFile(more, "a") as file:
        file.writestr("extra.py", "print()")
    monkeypatch.setattr(zipfile.ZipFile, "extractall", lambda *_: pytest.fail("unpacked"))
    assert "manifest.json does not list extra.py" in problems_of(more)


def test_arrays_that_would_unpack_to_more_than_their_file_are_not_read(folder: Path) -> None:
    np.savez_compressed(folder / GOLDEN, **{"inputs/image": np.zeros((1_000_000,)), "outputs/y": np.zeros(1)})
    seal_with_evidence(folder)
    assert "its arrays are larger than the file" in problems_of(folder)
    np.savez(folder / GOLDEN, **{"inputs/image": np.zeros((1_000_000,))})
    with zipfile.ZipFile(folder / GOLDEN, "a") as file:
        file.filelist += file.filelist  # a second name for the same bytes
        file._didModify = True  # type: ignore[attr-defined]
    seal_with_evidence(folder)
    assert "its arrays are larger than the file" in problems_of(folder)


def test_full_disk_is_no_damage(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(ConfigError, match=r"the disk is full\. Fix: free space there, or set TMPDIR"):
        verify(packed)


def test_missing_files_and_added_files_and_links_are_named(folder: Path) -> None:
    (folder / "extra.py").write_text("")
    (folder / "README.md").unlink()
    for name in (links := {"signatures/private", "registered_model_meta"}):
        (folder / name).symlink_to(__file__)
    assert {line.partition(":")[0] for line in verify(folder).damage} == {"extra.py", "README.md", *links}


def test_other_outputs_than_the_golden_ones_fail(folder: Path) -> None:
    with np.load(folder / GOLDEN) as file:
        arrays = {name: file[name] for name in file.files}
    output = next(name for name in arrays if name.startswith("outputs/"))
    arrays[output][0] += 0.1 * np.abs(arrays[output]).max()
    np.savez(folder / GOLDEN, **arrays)
    seal_with_evidence(folder)
    assert "differs by" in problems_of(folder)
    assert verify(folder).golden[0].max_rel_error == pytest.approx(0.1, rel=0.1)
    arrays[output][:] = np.nan
    np.savez(folder / GOLDEN, **arrays)
    seal_with_evidence(folder)
    assert "differs by nan" in problems_of(folder)


def test_bundle_without_golden_outputs_fails(folder: Path) -> None:
    np.savez(folder / GOLDEN)
    seal_with_evidence(folder)
    assert "no golden outputs" in problems_of(folder)


@pytest.mark.parametrize("name", ["../../outside", "/etc/cron.d/x", "a\n", "\x1b]0;a", "", ".."])
@pytest.mark.parametrize("key", ["name", "run_id"])
def test_bundle_cannot_name_the_place_where_files_about_it_are_written(folder: Path, key: str, name: str) -> None:
    """A monitor of it writes its pages into `monitors/NAME-VERSION` of the log."""
    contract = json.loads((folder / CONTRACT).read_text())
    (folder / CONTRACT).write_text(json.dumps(contract | {key: name}))
    seal(folder)
    with pytest.raises(DamagedBundle, match=f"{key}: String should match"):
        Bundle.open(folder)


def test_what_is_no_bundle_is_an_invalid_argument(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no bundle")
    for path in (tmp_path / "nothing", tmp_path / "notes.txt", tmp_path):
        with pytest.raises(ConfigError, match="gauntlet bundle RUN"):
            verify(path)


def test_signature_by_another_key_and_none_at_all_fail_where_a_key_is_named(
    packed: Path, signed: Path, tmp_path: Path
) -> None:
    _, other = make_keys(tmp_path)
    assert "not by the given one" in problems_of(signed, other)
    assert "no signature by" in problems_of(packed, other)
    assert verify(packed).passed


def test_changed_and_resealed_bundle_no_longer_matches_its_signature(folder: Path, keys: Keys) -> None:
    (folder / "README.md").write_text("Trust me.")
    seal(folder)
    assert "README.md is not as it was signed" in problems_of(folder, keys[1])


def test_signature_in_the_form_of_openssf_which_leaves_out_the_key_is_verified_with_it(
    folder: Path, keys: Keys
) -> None:
    [path] = (folder / "signatures").iterdir()
    content = json.loads(path.read_text())
    del content["verificationMaterial"]["publicKey"]["rawBytes"]
    path.write_text(json.dumps(content))
    assert verify(folder, keys[1]).passed
    assert "neither in it nor the given one" in problems_of(folder)


@pytest.mark.parametrize("curve", [ec.SECP384R1, ec.SECP521R1])
def test_larger_curves_sign_too(packed: Path, tmp_path: Path, curve: type[ec.EllipticCurve]) -> None:
    folder = tmp_path / "digits"
    shutil.unpack_archive(packed, folder)
    private, public = make_keys(tmp_path, curve)
    sign(Bundle.open(folder), private)
    archive(folder, tmp_path / "digits.zip")
    assert verify(tmp_path / "digits.zip", public).passed


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_unusable_key_is_refused_with_the_way_to_make_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "key.pem").write_text(text)
    with pytest.raises(ConfigError, match="openssl ecparam"):
        read_private_key(tmp_path / "key.pem")


def test_what_a_lesser_processor_cannot_reproduce_is_told(folder: Path) -> None:
    bundle = Bundle.open(folder)
    contract = bundle.contract.replace(instructions=("avx512_madeup",), target="openvino", session=None, processor="X")
    (folder / "contract.json").write_text(contract.model_dump_json())
    shutil.rmtree(folder / "signatures")
    seal_with_evidence(folder)
    text = "\n".join(verify(folder).unproven)
    assert "lacks avx512_madeup of X" in text
    assert "won on openvino, which cannot run here" in text


def test_missing_package_is_named_with_its_extra_and_unsigned_bundles_need_it_not(
    packed: Path, signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert verify(packed).passed
    with pytest.raises(ConfigError, match="the package cryptography"):
        verify(signed)
