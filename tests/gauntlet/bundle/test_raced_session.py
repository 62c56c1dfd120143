"""A bundle runs as it was raced, or says in one line why it does not."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
import pytest
from bundles import confirmation, pack
from runtime_environments import home_with

import gauntlet
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.bundle.raced_session import open_raced, target_of_session
from gauntlet.bundle.trust import TRUSTED_KEYS
from gauntlet.core.kinds import GROUP, kinds
from gauntlet.core.workspace import Workspace
from gauntlet.targets import OrtCpu, by_name
from gauntlet.targets.base import BaseTarget

if TYPE_CHECKING:
    from conftest import Trained


def bundle_for(trained: "Trained", space: Workspace, target: BaseTarget, threads: int = 2) -> Path:
    final = confirmation("static-u8s8", target.name).replace(session=None)
    done = pack(space, trained.model, trained.golden, final=final, target=target, threads=threads)
    done.raise_if_blocked()
    return space.path(done.artifacts["bundle"])


def test_target_that_cannot_run_here_is_said_in_one_line(
    trained: "Trained",
    workspace: Callable[..., Workspace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from wings.verification.library.verification import verify

    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    bundle = bundle_for(trained, workspace(trained.store), by_name("openvino-f32"))
    predictor = gauntlet.load(bundle)
    assert isinstance(predictor.session, ort.InferenceSession)
    assert predictor.not_as_raced.startswith("digits won on openvino-f32, which cannot run here: ")
    assert "install it with: gauntlet targets install openvino" in predictor.not_as_raced
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
@pytest.mark.parametrize(
    ("name", "properties"), [("openvino-f32", {"ENABLE_CPU_PINNING": "NO"}), ("openvino-bf16", {})]
)
def test_winner_on_another_runtime_runs_there_and_is_proven_there(
    trained: "Trained",
    workspace: Callable[..., Workspace],
    openvino_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    properties: dict[str, str],
) -> None:
    from wings.verification.library.verification import verify

    with monkeypatch.context() as patch:
        patch.setenv("GAUNTLET_HOME", str(openvino_home))
        target = by_name(name).replace(properties=properties)
        if (why := target.unavailable()) and "computes in" in why:
            pytest.skip(why)  # the processor lacks the instructions, which nothing can install
        path = bundle_for(trained, workspace(trained.store), target, threads=1)
        predictor = Predictor(Bundle.open(path))
        assert predictor.not_as_raced == ""
        assert predictor.contract.runtime == predictor.session.runtime
        assert predictor.contract.runtime.startswith("openvino ")
        compiled = predictor.session.compiled
        assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
        assert compiled.get_property("ENABLE_CPU_PINNING") is (target.name == "openvino-bf16")
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


OTHER = OrtCpu(threads=2, memory_pattern=False, inter_op_threads=1, config_entries={"session.dynamic_block_base": "4"})
TARGETS = (OrtCpu(), OrtCpu(threads=1), OrtCpu(level="extended", arena=False), OrtCpu(spinning=False), OTHER)


@pytest.mark.parametrize("target", TARGETS)
def test_session_of_a_contract_is_opened_as_it_won(target: OrtCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.bundle.raced_session.usable_threads", lambda: 8)
    assert target_of_session(target.session_options(4)) == target.replace(threads=target.threads or 4)


def test_winner_runs_with_the_options_and_threads_of_its_race(
    trained: "Trained", workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_for(trained, workspace(trained.store), OrtCpu(level="extended", spinning=False), threads=3)
    for here, threads in ((4, 3), (2, 2)):
        monkeypatch.setattr("gauntlet.bundle.raced_session.usable_threads", lambda here=here: here)
        predictor = gauntlet.load(bundle)
        options = predictor.session.session.get_session_options()
        assert (predictor.not_as_raced, options.intra_op_num_threads) == ("", threads)
        assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kind": "ort-cpu", "env": "/elsewhere"}, "its contract sets env, which a bundle may not"),
        (
            {"kind": "ort-cpu", "config_entries": {"session.load_model_format": "ORT"}},
            "its contract sets config_entries.session.load_model_format, which a bundle may not",
        ),
        ({"kind": ["ort-cpu"]}, "unknown target kind=['ort-cpu']"),
        ({"kind": "ort-cpu", "level": "most"}, "target ort-cpu: level: "),
        ({}, "unknown target kind=;"),
    ],
)
def test_options_that_could_load_code_or_are_unknown_are_refused(
    packed: Path, options: dict[str, object], why: str
) -> None:
    bundle = Bundle.open(packed)
    elsewhere = bundle.contract.replace(session=None, target="elsewhere", options=options)
    session, line = open_raced(elsewhere, bundle.model)
    assert isinstance(session, ort.InferenceSession)
    assert why in line


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
