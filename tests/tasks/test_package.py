"""The winner is packaged whole, and each check of the gate is seen failing."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_text
import pytest
from bundles import confirmation, gate, keep, keep_golden, pack, run_report, samples, stage_entry
from evidence import seal_with_evidence

from gauntlet.bundle.bundle import GOLDEN, MODEL, Bundle, archive
from gauntlet.bundle.write import FLOAT_TOLERANCE, HALF_TOLERANCE, INTEGER_TOLERANCE
from gauntlet.core.artifact import sha256_of
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.onnx_model.model_file import external_locations
from tasks.package import examine

if TYPE_CHECKING:
    from conftest import Trained

MakeSpace = Callable[..., Workspace]
AFFINE = "affine (float[n,8] x) => (float[n,4] y) <float[8,4] w> { y = MatMul(x, w) }"


def packed(space: Workspace, proto: onnx.ModelProto | None = None, **config: float) -> Path:
    model = keep(proto or onnx_text.model(AFFINE), space.store, space.folder)
    golden = keep_golden(space.path(model), {"x": samples(64, 8)}, space.store, space.folder)
    return space.path(pack(space, model, golden, config).artifacts["bundle"])


def unpacked(path: Path, folder: Path) -> Path:
    shutil.unpack_archive(path, folder)
    return folder


def test_same_inputs_give_the_same_bytes(workspace: MakeSpace) -> None:
    spaces = [workspace() for _ in range(2)]
    first, second = (packed(Workspace(space.store, space.folder)).read_bytes() for space in spaces)
    assert first == second


def test_file_of_the_winner_is_unchanged_and_its_golden_outputs_are_its_own(
    trained: "Trained", workspace: MakeSpace, tmp_path: Path
) -> None:
    report = pack(workspace(trained.store), trained.model, trained.golden)
    report.raise_if_blocked()
    folder = unpacked(trained.store.path(report.artifacts["bundle"]), tmp_path / "digits")
    bundle = Bundle.open(folder)
    assert sha256_of([folder / MODEL]) == trained.model.sha256
    assert report.facts.digest == bundle.digest
    assert (report.facts.samples, len(bundle.golden().inputs["input"])) == (16, 16)
    assert report.facts.golden[0].max_rel_error <= 1e-6
    assert np.allclose(bundle.source_golden().outputs["logits"], bundle.golden().outputs["logits"], atol=1e-3)
    assert (folder / GOLDEN).stat().st_size < 400_000


def test_contract_has_what_the_winner_was_proven_with(workspace: MakeSpace, tmp_path: Path) -> None:
    contract = Bundle.open(unpacked(packed(workspace()), tmp_path / "x")).contract
    assert (contract.candidate, contract.target) == ("static-u8s8", "ort-cpu")
    assert contract.session == confirmation().session.options  # type: ignore[union-attr]
    assert [row.batch for row in contract.latencies] == [1, 8, 32]
    assert contract.runtime.startswith("onnxruntime ")


def test_external_data_is_packaged_under_its_name(workspace: MakeSpace, tmp_path: Path) -> None:
    space = workspace()
    model = keep(onnx_text.model(AFFINE), space.store, space.folder, external=True)
    golden = keep_golden(space.path(model), {"x": samples(9, 8)}, space.store, space.folder)
    report = pack(space, model, golden)
    report.raise_if_blocked()
    folder = unpacked(space.path(report.artifacts["bundle"]), tmp_path / "x")
    assert external_locations(onnx.load(folder / MODEL, load_external_data=False)) == ["kept.onnx.data"]
    subjects = json.loads((folder / "provenance" / "slsa.json").read_text())["subject"]
    assert [one["name"] for one in subjects] == [MODEL, "kept.onnx.data"]
    assert subjects[1]["digest"]["sha256"] == sha256_of([folder / "kept.onnx.data"])


@pytest.mark.parametrize("changed", ["model", "golden"])
def test_file_that_changed_since_its_gates_passed_is_not_packaged(workspace: MakeSpace, changed: str) -> None:
    space = workspace()
    model = keep(onnx_text.model(AFFINE), space.store, space.folder)
    golden = keep_golden(space.path(model), {"x": samples(64, 8)}, space.store, space.folder)
    file = space.store.path({"model": model, "golden": golden}[changed])
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # the last digit of a number
    file.write_bytes(content)
    with pytest.raises(StageError, match=r"changed since it was stored\. Fix: run again"):
        pack(workspace(space.store), model, golden)


@pytest.mark.nightly
def test_model_of_more_than_two_gigabytes_is_packaged(workspace: MakeSpace) -> None:
    space = workspace()
    proto = onnx_text.model("large (float[n,8] x) => (float[n,8] y) { z = Gather(w, i) y = Add(x, z) }")
    proto.graph.initializer.add(name="i", data_type=7, int64_data=[70_000_000])
    weights = proto.graph.initializer.add(name="w", data_type=1, dims=[70_000_001, 8], data_location=1)
    weights.external_data.add(key="location", value="kept.onnx.data")
    with (space.folder / "kept.onnx.data").open("wb") as file:
        file.truncate(70_000_001 * 8 * 4)  # zeros, which take no space
    signature_from_graph(proto).write(proto)
    onnx.save(proto, space.folder / "kept.onnx")
    model = space.store.put(space.folder / "kept.onnx", space.folder / "kept.onnx.data")
    golden = keep_golden(space.path(model), {"x": samples(2, 8)}, space.store, space.folder)
    report = pack(space, model, golden)
    report.raise_if_blocked()
    assert report.facts.size_bytes > 2**31


def test_golden_data_is_as_large_as_allowed_and_has_one_sample_at_least(
    workspace: MakeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_bytes = (8 + 4 + 4) * 4
    for limit_kb, count in ((400, 16), (5.5 * sample_bytes / 1000, 5), (0.001, 1)):
        monkeypatch.setattr("tasks.package.MAX_GOLDEN_KB", limit_kb)
        assert len(Bundle.open(packed(workspace())).golden().outputs["y"]) == count


def test_report_has_the_evidence_for_the_winner_alone(trained: "Trained", workspace: MakeSpace, tmp_path: Path) -> None:
    check = Check.of("accuracy.max_drop", 0.002, "<=", 0.01)
    stages = (
        stage_entry("data", trained.data),
        gate("accuracy", "static-u8s8", check),
        gate("accuracy", "loser", check),
    )
    record = run_report(trained.model, "static-u8s8", stages)
    done = pack(workspace(trained.store), trained.model, trained.golden, report=record)
    folder = unpacked(trained.store.path(done.artifacts["bundle"]), tmp_path / "x")
    kept = RunReport.model_validate_json((folder / "report.json").read_bytes())
    assert [(entry.stage, entry.candidate) for entry in kept.stages] == [("data", None), ("accuracy", "static-u8s8")]
    assert kept.stages[1].checks == (check,)
    assert [len(candidate.benchmark) for candidate in kept.candidates] == [0, 3]
    assert not any("secret-name" in path.read_text() for path in folder.rglob("*.json"))


QUANTIZED = """
    q (float[n,8] x) => (float[n,8] y) <float s = {0.1}, uint8 z = {128}>
    { a = QuantizeLinear(x, s, z) y = DequantizeLinear(a, s, z) }
"""
HALF = """
    h (float[n,8] x) => (float[n,4] y) <float16[8,4] w>
    { a = Cast<to=10>(x) b = MatMul(a, w) y = Cast<to=1>(b) }
"""


@pytest.mark.parametrize(
    ("text", "weights", "tolerance"),
    [
        (AFFINE, None, FLOAT_TOLERANCE),
        (QUANTIZED, None, INTEGER_TOLERANCE),
        (HALF, {"w": np.ones((8, 4), np.float16)}, HALF_TOLERANCE),
    ],
    ids=["float", "integer", "half"],
)
def test_tolerance_follows_how_the_model_computes(
    workspace: MakeSpace, text: str, weights: dict[str, np.ndarray] | None, tolerance: float
) -> None:
    assert Bundle.open(packed(workspace(), onnx_text.model(text, weights))).contract.golden_tolerance == tolerance


def test_bundle_with_a_changed_file_fails_the_gate(workspace: MakeSpace, tmp_path: Path) -> None:
    folder = unpacked(packed(workspace()), tmp_path / "x")
    (folder / "report.json").write_text("changed")
    archive(folder, tmp_path / "x.zip")
    _, checks = examine(tmp_path / "x.zip")
    assert [check.name for check in checks if check.blocks] == ["package.damaged_files"]
    assert checks[0].detail.startswith("report.json: changed")


def test_bundle_whose_model_gives_other_outputs_fails_the_gate(workspace: MakeSpace, tmp_path: Path) -> None:
    folder = unpacked(packed(workspace()), tmp_path / "x")
    proto = onnx.load(folder / MODEL)
    weight = onnx.numpy_helper.to_array(proto.graph.initializer[0]) * np.float32(1.001)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, proto.graph.initializer[0].name))
    onnx.save(proto, folder / MODEL)
    seal_with_evidence(folder)
    archive(folder, tmp_path / "x.zip")
    _, checks = examine(tmp_path / "x.zip")
    [failed] = [check for check in checks if check.blocks]
    assert failed.name == "package.max_golden_error"
    assert "{" not in failed.detail


def test_winner_that_is_unlike_its_source_fails_the_gate_although_its_golden_outputs_are_its_own(
    workspace: MakeSpace,
) -> None:
    space = workspace()
    sound, broken = (onnx_text.model(AFFINE, {"w": weights}) for weights in (np.eye(8, 4), -np.eye(8, 4)))
    golden = keep_golden(
        space.path(keep(sound, space.store, space.folder)), {"x": samples(64, 8)}, space.store, space.folder
    )
    report = pack(space, keep(broken, space.store, space.folder), golden)
    assert [check.name for check in report.failures] == ["package.outputs_unlike_source"]
    assert "'y'" in report.failures[0].detail


def test_winner_that_is_unlike_its_source_at_another_length_alone_fails_the_gate(workspace: MakeSpace) -> None:
    space, relu = workspace(), "m (float[n,t] x) => (float[n,t] y) { y = Relu(x) }"
    inputs = {"real": samples(64, 8), "t=4": samples(64, 4), "t=2": samples(64, 2)}
    cases = {title: GoldenCase({"x": x}, {"y": np.maximum(x, 0)}) for title, x in inputs.items()}
    np.negative(cases["t=4"].outputs["y"], out=cases["t=4"].outputs["y"])
    Golden(cases, cases["real"].outputs).save(space.folder / "golden.npz")
    model = keep(onnx_text.model(relu), space.store, space.folder)
    [failure] = pack(space, model, space.store.put(space.folder / "golden.npz")).failures
    assert (failure.name, failure.detail) == ("package.outputs_unlike_source", "outputs ['y t=4']")


def test_weights_named_like_a_file_of_the_bundle_are_refused(workspace: MakeSpace) -> None:
    space = workspace()
    proto = onnx_text.model(AFFINE)
    model = keep(proto, space.store, space.folder)
    golden = keep_golden(space.path(model), {"x": samples(9, 8)}, space.store, space.folder)
    onnx.save(proto, space.folder / "m.onnx", save_as_external_data=True, location="golden.npz", size_threshold=0)
    renamed = space.store.put(space.folder / "m.onnx", space.folder / "golden.npz")
    with pytest.raises(StageError, match=r"golden\.npz"):
        pack(space, renamed, golden)


def test_zip_is_stored_so_that_it_opens_at_the_speed_of_the_disk(workspace: MakeSpace) -> None:
    with zipfile.ZipFile(packed(workspace())) as archived:
        assert {info.compress_type for info in archived.infolist()} == {zipfile.ZIP_STORED}
