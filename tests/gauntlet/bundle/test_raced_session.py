"""A bundle runs as it was raced, or says in one line why it does not."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
import pytest
from bundles import confirmation, pack, run_report
from runtime_environments import home_with

import gauntlet
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.bundle.trust import TRUSTED_KEYS
from gauntlet.core.kinds import GROUP, kinds
from gauntlet.core.workspace import Workspace
from gauntlet.targets import by_name

if TYPE_CHECKING:
    from conftest import Trained


def bundle_for(trained: "Trained", space: Workspace, target: str) -> Path:
    final, report = confirmation("static-u8s8", target), run_report(trained.model, "static-u8s8")
    done = pack(space, trained.model, trained.golden, final=final, report=report)
    done.raise_if_blocked()
    return space.path(done.artifacts["bundle"])


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("openvino-f32", "its environment is not installed; install it with: gauntlet targets install openvino"),
        ("abacus", "unknown target 'abacus'"),
    ],
)
def test_target_that_cannot_run_here_is_said_in_one_line(
    trained: "Trained",
    workspace: Callable[..., Workspace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    target: str,
    why: str,
) -> None:
    from wings.verification.library.verification import verify

    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    bundle = bundle_for(trained, workspace(trained.store), target)
    predictor = gauntlet.load(bundle)
    assert isinstance(predictor.session, ort.InferenceSession)
    assert predictor.not_as_raced.startswith(f"digits won on {target}, which cannot run here: ")
    assert why in predictor.not_as_raced
    assert caplog.messages == [predictor.not_as_raced]
    checked = verify(bundle)
    assert checked.passed
    assert predictor.not_as_raced in checked.unproven


@pytest.fixture(scope="module")
def openvino_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with OpenVINO, which a process imports from one place only."""
    with home_with(["openvino"], tmp_path_factory.mktemp("openvino")) as home:
        return home


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["openvino-f32", "openvino-bf16"])
def test_winner_on_another_runtime_runs_there_and_is_proven_there(
    trained: "Trained",
    workspace: Callable[..., Workspace],
    openvino_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    from wings.verification.library.verification import verify

    with monkeypatch.context() as patch:
        patch.setenv("GAUNTLET_HOME", str(openvino_home))
        if (why := by_name(target).unavailable()) and "computes in" in why:
            pytest.skip(why)  # the processor lacks the instructions, which nothing can install
        path = bundle_for(trained, workspace(trained.store), target)
        predictor = Predictor(Bundle.open(path))
        assert predictor.not_as_raced == ""
        assert predictor.contract.runtime == predictor.session.runtime
        assert predictor.contract.runtime.startswith("openvino ")
        golden = Bundle.open(path).golden()
        with ThreadPoolExecutor(4) as pool:  # answers of threads do not mix
            rows = [{name: array[i : i + 1] for name, array in golden.inputs.items()} for i in range(16)]
            answers = list(pool.map(predictor.run, rows))
        actual = np.concatenate([answer["logits"] for answer in answers])
        assert np.abs(actual - golden.outputs["logits"]).max() <= 0.02 * np.abs(golden.outputs["logits"]).max()
        for array in (row := rows[0]).values():
            array.setflags(write=False)
        every_second = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in row.items()}
        assert np.array_equal(predictor.run(row)["logits"], predictor.run(every_second)["logits"])
        assert verify(path).passed
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "empty"))
    assert verify(path).passed  # in ONNX Runtime, within the tolerance that was measured


def test_bundle_is_refused_where_what_verifies_its_signature_was_removed(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = EntryPoint("signature.verify", "wings.nowhere.signing:verify_signatures", GROUP)
    monkeypatch.setattr("gauntlet.core.kinds.points", lambda: (gone,))
    monkeypatch.setenv(TRUSTED_KEYS, "PUB.pem")
    kinds.cache_clear()
    with pytest.raises(gauntlet.ConfigError, match=r"\(PUB.pem\): signature\.verify is in wings\.nowhere\.signing"):
        gauntlet.load(packed)
    kinds.cache_clear()
