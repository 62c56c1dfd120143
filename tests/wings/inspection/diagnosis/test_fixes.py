"""Each automatic fix makes its model pass, and none changes the answers."""

from collections.abc import Callable
from pathlib import Path

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
from onnx import numpy_helper

from gauntlet.core.signature import Signature
from gauntlet.runtime.session import open_session
from wings.inspection.library.diagnosis import diagnose, fix
from wings.inspection.library.diagnosis.findings import CallerHints, Diagnosis, FixResult
from wings.inspection.library.diagnosis.fixes import LIMIT, difference

from .conftest import Mend

X = np.random.default_rng(3).standard_normal((6, 3, 16, 16)).astype(np.float32)


@pytest.fixture
def answer(tmp_path: Path) -> Callable[..., dict[str, np.ndarray]]:
    def run(**feed: np.ndarray) -> dict[str, np.ndarray]:
        session = open_session(tmp_path / "fixed.onnx")
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, feed), strict=True))

    return run


def sound(x: np.ndarray = X) -> dict[str, np.ndarray]:
    return {"y": open_session(faulty_models.cnn().SerializeToString()).run(None, {"x": x})[0]}


def sound_after(mended: tuple[FixResult, Diagnosis | None]) -> FixResult:
    """Return how a model was mended, after whose fixes nothing is found any more."""
    mending, after = mended
    assert after is not None, mending
    assert after.findings == ()
    return mending


SAME_AS_SOUND = (
    faulty_models.newer_opset,
    faulty_models.newer_cast,
    faulty_models.newer_ir_version,
    faulty_models.frozen_batch,
    faulty_models.reshape_with_batch,
    faulty_models.unread_input,
    faulty_models.old_opset,
    faulty_models.constant_weight,
    faulty_models.default_input,
    faulty_models.wrong_shape,
    faulty_models.unused_node,
    faulty_models.repeated_name,
    faulty_models.unsorted,
    lambda: faulty_models.reshape_with_batch(1, 1),
    lambda: faulty_models.reshape_with_batch(4, 4),
    lambda: faulty_models.reshape_with_batch(4),
)


@pytest.mark.parametrize("build", SAME_AS_SOUND)
def test_fixed_model_passes_and_answers_like_the_sound_one(mend: Mend, answer, build) -> None:
    mending, after = mend(build())
    assert after is not None, mending
    assert (after.findings, after.batches) == ((), (1, 2, 3))
    (step,) = mending.steps
    assert step.kept
    assert step.max_abs_error <= LIMIT
    assert difference(sound(), answer(x=X)) < 1e-5


@pytest.mark.parametrize("build", [faulty_models.constant_branch, faulty_models.local_function])
def test_branches_and_functions_become_nodes_and_the_outputs_stay(mend: Mend, answer, build) -> None:
    proto = build()
    expected = open_session(proto.SerializeToString()).run(None, {"x": X})[0]
    (name,) = [output.name for output in proto.graph.output]
    assert [step.kept for step in sound_after(mend(proto)).steps] == [True]
    assert difference({name: expected}, answer(x=X)) < 1e-5


def test_zeros_that_pad_a_maximum_are_kept(mend: Mend, answer) -> None:
    proto = faulty_models.forgotten_padding()
    written, computed = (open_session(proto.SerializeToString(), level=level) for level in ("off", "all"))
    expected = {"y": written.run(None, {"x": X})[0]}
    assert difference(expected, {"y": computed.run(None, {"x": X})[0]}) > 0.1
    mending, after = mend(proto)
    assert after is not None, mending
    assert ([step.kept for step in mending.steps], after.findings) == ([True], ())
    assert difference(expected, answer(x=X)) < 1e-5


@pytest.mark.parametrize("opset", [9, 13, 18])
def test_batch_norm_uses_its_stored_statistics_again(mend: Mend, answer, opset: int) -> None:
    mending = sound_after(mend(faulty_models.batch_norm_that_trains(opset)))
    norm = next(n for n in onnx.load(mending.output or "").graph.node if n.op_type == "BatchNormalization")
    assert list(norm.output) == ["n"]
    one, many = answer(x=X[:1])["y"], answer(x=X)["y"]
    assert np.abs(one - many[:1]).max() < 1e-5  # no sample depends on the others


def test_statistics_that_somebody_reads_stay_what_they_are(mend: Mend, answer) -> None:
    proto = faulty_models.batch_norm_that_trains()
    proto.graph.output.append(faulty_models.value("new_mean", 8))
    sound_after(mend(proto))
    assert answer(x=X)["new_mean"] == pytest.approx([0.1] * 8)


def test_training_mode_is_compared_with_the_right_outputs_when_the_data_has_them(mend: Mend, tmp_path: Path) -> None:
    np.savez(tmp_path / "right.npz", x=X, **sound())
    mending, after = mend(faulty_models.dropout_that_drops(), data=tmp_path / "right.npz")
    assert after is not None
    assert "expected outputs" in mending.steps[0].compared
    np.savez(tmp_path / "wrong.npz", x=X, y=sound()["y"] + 1)
    mending, after = mend(faulty_models.dropout_that_drops(), data=tmp_path / "wrong.npz")
    assert after is None  # refused: nothing is written
    assert mending.output is None
    assert not mending.steps[0].kept
    assert "undone: the outputs change by" in mending.steps[0].done


def test_samples_that_flowed_together_are_kept_apart(mend: Mend, answer) -> None:
    sound_after(mend(faulty_models.reshape_that_mixes_samples()))
    assert difference({"z": sound()["y"]}, answer(x=X)) < 1e-5


def test_fix_of_the_batch_is_refused_when_samples_depend_on_each_other(mend: Mend, tmp_path: Path) -> None:
    proto = faulty_models.cnn(
        batch=2
    )  # each sample less the mean of its batch: with another batch it is another answer
    proto.graph.node[-1].output[0] = "inner"
    onnx_text.extend(proto, "<int64[1] axes = {0}> { mean = ReduceMean(inner, axes) y = Sub(inner, mean) }")
    mending, after = mend(proto)
    assert after is None
    assert not (tmp_path / "fixed.onnx").exists()
    assert "undone: the outputs change by" in mending.steps[0].done
    assert (mending.steps[0].max_abs_error or 0) > LIMIT


def test_leaked_constants_are_bound_from_the_file(mend: Mend, answer, tmp_path: Path) -> None:
    mean = np.array([0.5, -0.5, 0.25], np.float32).reshape(1, 3, 1, 1)
    np.savez(tmp_path / "constants.npz", **{"model/norm/mean": mean})
    proto = faulty_models.signed(faulty_models.leaked_constants())
    mending = sound_after(mend(proto, constants=tmp_path / "constants.npz"))
    assert mending.steps[0].done == "leaked constants: bound 1 as initializers, dropped 1 unused"
    assert difference(sound(X - mean), answer(x=X)) < 1e-5


def test_leaked_constant_is_not_bound_when_its_value_has_another_shape(mend: Mend, tmp_path: Path) -> None:
    np.savez(tmp_path / "constants.npz", **{"model/norm/mean:0": np.zeros(5, np.float32)})
    mending, after = mend(faulty_models.leaked_constants(), constants=tmp_path / "constants.npz")
    assert after is None
    assert "has the shape (5,); expected float[1, 3, 1, 1]" in mending.steps[0].done


def test_leaked_constant_is_bound_from_a_stored_value_that_nothing_reads(mend: Mend, answer) -> None:
    mean = np.full((1, 3, 1, 1), 0.5, np.float32)
    proto = faulty_models.leaked_constants()
    proto.graph.initializer.append(numpy_helper.from_array(mean, "model/norm/mean"))
    sound_after(mend(proto))
    assert difference(sound(X - mean), answer(x=X)) < 1e-5


@pytest.mark.parametrize(
    ("build", "given"), [(faulty_models.cnn, "NHWC"), (faulty_models.nhwc, "NCHW")], ids=["nchw", "nhwc"]
)
def test_transposition_makes_the_callers_layout_right(mend: Mend, answer, build, given: str) -> None:
    mending = sound_after(mend(faulty_models.signed(build(), given), layout=given))
    x = X.transpose(0, 2, 3, 1) if given == "NHWC" else X
    assert difference(sound(), answer(x=np.ascontiguousarray(x))) < 1e-5
    signature = Signature.read(onnx.load(mending.output or ""))
    assert signature.layout == given
    assert signature.inputs[0].shape == ("batch", *x.shape[1:])


def test_shapes_are_known_after_the_preparation(mend: Mend, answer) -> None:
    proto = faulty_models.missing_shapes()
    session = open_session(proto.SerializeToString())
    assert "shapes are stored" in sound_after(mend(proto)).steps[0].done
    assert difference({"y": session.run(None, {"x": X})[0]}, answer(x=X)) < 1e-5


@pytest.mark.slow
def test_saved_graph_answers_at_once(mend: Mend, impatient: None) -> None:
    assert sound_after(mend(faulty_models.slow_first_call())).steps[0].fault == "slow_first_call"


def test_several_faults_are_fixed_in_one_go(mend: Mend, answer) -> None:
    drop = "<float ratio = {0.5}, bool on = {1}> { [drop] dropped = Dropout(f, ratio, on) }"
    proto = faulty_models.insert(faulty_models.reshape_with_batch(1, 1), 6, drop)
    proto.ir_version = 14
    mending = sound_after(mend(faulty_models.signed(proto), layout="NHWC"))
    assert [step.fault for step in mending.steps] == ["training_mode", "too_new", "frozen_batch", "wrong_layout"]
    assert all(step.kept for step in mending.steps)
    assert difference(sound(), answer(x=np.ascontiguousarray(X.transpose(0, 2, 3, 1)))) < 1e-5


def test_nothing_is_written_when_nobody_can_run_the_result(mend: Mend) -> None:
    proto = faulty_models.unregistered_operator()
    proto.ir_version = 14
    mending, after = mend(proto)
    assert after is None
    assert {step.fault for step in mending.steps} == {"too_new", "missing_shapes"}
    assert all("not applied" in step.done for step in mending.steps)


def test_steps_that_succeed_are_kept_beside_one_that_does_not(mend: Mend, tmp_path: Path) -> None:
    np.savez(tmp_path / "constants.npz", **{"model/norm/mean": np.zeros(5, np.float32)})  # a wrong shape
    proto = faulty_models.leaked_constants()
    proto.ir_version = 14
    mending, after = mend(proto, constants=tmp_path / "constants.npz")
    assert {step.fault: step.kept for step in mending.steps} == {"too_new": True, "leaked_constant": False}
    assert {finding.fault for finding in after.findings} == {"leaked_constant"}


@pytest.mark.slow
def test_model_may_be_fixed_in_place(apart: None, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(faulty_models.frozen_batch(), path)
    assert fix(path, path, CallerHints(), diagnose(path)).output == str(path)
    assert diagnose(path).findings == ()
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_weights_beside_the_model_are_kept(tmp_path: Path) -> None:
    path, target = tmp_path / "model.onnx", tmp_path / "fixed.onnx"
    onnx.save(faulty_models.frozen_batch(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert fix(path, target, CallerHints(), diagnose(path)).steps[0].kept
    assert difference(sound(), {"y": open_session(target).run(None, {"x": X})[0]}) < 1e-5
