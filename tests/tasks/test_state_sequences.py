"""Models with states are judged over sequences in which they feed themselves."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pretrained_models
import pytest
import streaming_models
from onnxruntime.quantization import QuantType, quantize_dynamic
from streaming_models import SAMPLES, cached, frames, late, leaky_sum

from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import state_sequence
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import ArraySplit
from gauntlet.datasets.state_sequence import record_sequence
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from gauntlet.targets import OrtCpu
from tasks.accuracy import AccuracyConfig, AccuracyFacts, accuracy
from tasks.benchmark.target_accuracy import TargetAccuracy
from tasks.data import data
from tasks.quantize.float16 import Float16
from tasks.train import train
from tasks.train.facts import TrainFacts
from tasks.train.onnx_pretrained import OnnxModel

SHARES = {"validation": 0, "calibration": 0.3, "test": 0.7}
Candidate = Callable[[Path], Path]


class Source:
    """A brought model after `data` and `train`."""

    def __init__(self, out: Workspace, folder: Path, samples: dict[str, np.ndarray], **config: object) -> None:
        np.savez(folder / "samples.npz", **samples)
        arrays = NpzArrays.model_validate({"path": folder / "samples.npz", "split_fractions": SHARES})
        self.out, self.data = out, data(arrays, out)
        brought = OnnxModel.model_validate({"model": folder / "model.onnx"} | config)
        signature = self.data.facts.signature
        self.report: Report[TrainFacts] = train(brought, out, splits=self.data.artifacts, signature=signature)

    @property
    def signature(self) -> Signature:
        return self.report.facts.signature

    @property
    def golden(self) -> Golden:
        return Golden.load(self.out.path(self.report.artifacts["golden"]))

    def judge(self, candidate: Path, **config: float) -> Report[AccuracyFacts]:
        proto = onnx.load(candidate)
        self.signature.write(proto)
        onnx.save(proto, self.out.folder / "candidate.onnx")
        model = self.out.store_file(self.out.folder / "candidate.onnx")
        inputs = {"model": model, "golden": self.report.artifacts["golden"], "test": self.data.artifacts["test"]}
        return accuracy(AccuracyConfig(**config), self.out, **inputs)


@pytest.fixture
def bring(workspace: Callable[..., Workspace], tmp_path: Path) -> Callable[..., Source]:
    def run(proto: onnx.ModelProto, samples: dict[str, np.ndarray] | None = None, **config: object) -> Source:
        onnx.save(proto, tmp_path / "model.onnx")
        return Source(workspace(), tmp_path, frames() if samples is None else samples, **config)

    return run


def value(report: Report[AccuracyFacts], name: str) -> float:
    return next(float(check.value or 0) for check in report.checks if check.name == f"accuracy.{name}")


def test_source_is_recorded_over_sequences_in_which_it_feeds_itself(bring) -> None:
    source = bring(leaky_sum())
    assert source.signature.states == (("h", "h_out"),)
    assert source.signature.primary_output == "y"
    sequence = source.golden.sequence
    steps, sequences = sequence.positions.shape
    assert (steps, sequences) == (21, 4)  # of 42 test samples
    test = np.load(source.out.path(source.data.artifacts["test"]))
    session = open_session(source.out.path(source.report.artifacts["model"]))
    state = test["h"][sequence.positions[0]]
    for step, samples in enumerate(sequence.positions):
        outputs = batched_inference(session, {"x": test["x"][samples], "h": state}).run(16)
        np.testing.assert_allclose(sequence.outputs["y"][step], outputs["y"], atol=1e-6)
        state = outputs["h_out"]
    assert (np.diff(sequence.positions, axis=0) == 1).all()


def test_candidate_whose_state_drifts_fails_though_each_step_is_close(bring, tmp_path: Path) -> None:
    source = bring(leaky_sum())
    onnx.save(leaky_sum(bias=0.1), tmp_path / "drifting.onnx")
    report = source.judge(tmp_path / "drifting.onnx", min_values_sqnr_db=-100)
    assert value(report, "min_sqnr_db") > 6
    failure, over_long_ones = report.failures
    assert failure.name == "accuracy.sequence_min_sqnr_db"
    assert over_long_ones.name == "accuracy.long_sequence_min_sqnr_db"
    assert "output 'h_out'" in failure.detail
    assert "first below the limit at step" in failure.detail
    noise = next(noise for noise in report.facts.sequence.noise if noise.output == "h_out")
    assert noise.steps_db[0] > noise.steps_db[10] > noise.steps_db[-1]


def test_candidate_whose_state_sticks_after_many_steps_fails(bring, tmp_path: Path) -> None:
    source = bring(late(), {"x": frames()["x"], "h": np.arange(SAMPLES, dtype=np.float32)[:, None] % 8})
    assert source.golden.long_sequence.positions.shape == (512, 2)
    onnx.save(late(stuck=True), tmp_path / "stuck.onnx")
    failed = {check.name: check.detail for check in source.judge(tmp_path / "stuck.onnx").failures}
    assert {name.partition("_min_")[0] for name in failed} == {"accuracy.long_sequence"}
    assert "2 sequences of 512 steps" in failed["accuracy.long_sequence_min_sqnr_db"]
    assert source.judge(tmp_path / "model.onnx").failures == ()


def test_long_sequence_ends_with_the_time_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_sequence, "LONG_S", 0.0)
    split = ArraySplit({"h": np.zeros((4, 1), np.float32)})
    specs = [(TensorSpec(name=name, dtype="float32", shape=("n", 1)),) for name in ("h", "h_out")]
    signature = Signature(task="arrays", inputs=specs[0], outputs=specs[1], states=(("h", "h_out"),))
    sequence = record_sequence(lambda feed: {"h_out": feed["h"] + 1}, split, signature, long=True)
    assert sequence is not None
    assert sequence.positions.tolist() == [[0, 2]]


def test_cache_grows_over_sequences_and_one_that_drifts_fails(bring, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = {"x": rng.standard_normal((60, 1, 8)), "cache": rng.standard_normal((60, 4, 8)), "mask": np.ones((60, 5))}
    source = bring(cached(), {name: array.astype(np.float32) for name, array in samples.items()})
    assert source.signature.states == (("cache", "cache_out"),)
    sequence, test = source.golden.sequence, np.load(source.out.path(source.data.artifacts["test"]))
    assert [*sequence.outputs] == ["y"]  # which depends on the whole cache
    [*earlier, last] = sequence.positions
    entries = [test["cache"][earlier[0]], *(test["x"][step] for step in (*earlier, last))]
    assert np.allclose(sequence.outputs["y"][-1], np.concatenate(entries, axis=1).mean(axis=1), atol=1e-5)
    kinds = ("sequence", "long_sequence")
    for bias, failed in ((0.0, []), (0.05, [f"accuracy.{kind}_min_values_sqnr_db" for kind in kinds])):
        onnx.save(cached(bias), tmp_path / "candidate.onnx")
        assert [check.name for check in source.judge(tmp_path / "candidate.onnx").failures] == failed


def test_cache_that_the_model_refuses_is_warned_of_and_held_to_the_limit_of_values(bring, tmp_path: Path) -> None:
    proto = cached()
    proto.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "total"  # nothing says how long the mask is
    drawn = np.random.default_rng(0).standard_normal((60, 5, 8)).astype(np.float32)
    source = bring(proto, {"x": drawn[:, :1], "cache": drawn[:, 1:], "mask": np.ones((60, 5), np.float32)})
    assert source.golden.sequence.positions.shape[0] == 1
    [check] = [check for check in source.report.checks if check.name == "train.sequence_steps"]
    assert (check.passed, check.severity) == (False, "warning")
    onnx.save(cached(0.15), tmp_path / "candidate.onnx")
    failures = {check.name: check.detail for check in source.judge(tmp_path / "candidate.onnx").failures}
    assert "output 'cache_out'" in failures["accuracy.min_values_sqnr_db"]


@pytest.mark.parametrize(("bias", "fails"), [(0.0, False), (0.1, True)])
def test_target_runs_the_sequences_too(bring, tmp_path: Path, bias: float, fails: bool) -> None:
    source = bring(leaky_sum())
    proto = leaky_sum(bias=bias)
    source.signature.write(proto)
    onnx.save(proto, tmp_path / "candidate.onnx")
    golden, test = (source.out.path(a) for a in (source.report.artifacts["golden"], source.data.artifacts["test"]))
    judge = TargetAccuracy(AccuracyConfig(min_values_sqnr_db=-100), golden, test)
    checks = judge.checks("candidate", tmp_path / "candidate.onnx", OrtCpu(), threads=1, timeout_s=60)
    failed = [check.name for check in checks if check.blocks]
    assert failed == ([f"accuracy.{kind}_min_sqnr_db" for kind in ("sequence", "long_sequence")] if fails else [])


def half(source: Path) -> Path:
    Float16().quantize(source, None, None, source.with_name("half.onnx"))
    return source.with_name("half.onnx")


def integers(source: Path) -> Path:
    quantize_dynamic(source, source.with_name("int8.onnx"), weight_type=QuantType.QUInt8)
    return source.with_name("int8.onnx")


@pytest.mark.parametrize("make", [half, integers])
def test_accurate_candidate_passes_over_sequences(bring, tmp_path: Path, make: Candidate) -> None:
    report = bring(leaky_sum()).judge(make(tmp_path / "model.onnx"))
    assert report.failures == ()
    assert value(report, "sequence_min_sqnr_db") > 20


def test_state_without_a_batch_axis_is_fed_sample_by_sample(bring, tmp_path: Path) -> None:
    model, samples = pretrained_models.state(tmp_path)
    source = bring(onnx.load(model), samples)
    assert source.signature.states == (("h", "h_next"),)
    assert value(source.judge(model), "sequence_min_sqnr_db") == np.inf


def test_states_are_as_configured(bring) -> None:
    unnamed = leaky_sum(names=("memory", "z"))
    samples = frames()
    samples = {"x": samples["x"], "memory": samples["h"]}
    assert bring(unnamed, samples).signature.states == ()  # the frame has the same shape
    assert bring(unnamed, samples, states=[["memory", "z"]]).signature.states == (("memory", "z"),)
    cleared = bring(leaky_sum(), states=[])
    assert cleared.signature.states == ()
    assert cleared.golden.sequence is None
    with pytest.raises(StageError, match=r"train\.states: the input 'h' is f\[8\], the output 'y' is f\[3\]"):
        bring(leaky_sum(), states=[["h", "y"]])


def test_integer_state_is_judged_by_its_agreement(bring, tmp_path: Path) -> None:
    def counter(step: int) -> onnx.ModelProto:
        return streaming_models.counter(step)

    samples = {"x": frames()["x"], "count": np.arange(streaming_models.SAMPLES)}
    source = bring(counter(1), samples)
    assert source.signature.states == (("count", "count_out"),)
    onnx.save(counter(2), tmp_path / "wrong.onnx")
    failed = {check.name: check for check in source.judge(tmp_path / "wrong.onnx").failures}
    assert "output 'count_out'" in failed["accuracy.sequence_min_agreement"].detail
    assert source.judge(tmp_path / "model.onnx").failures == ()


def test_predicted_classes_are_judged_over_sequences(bring, tmp_path: Path) -> None:
    samples = frames(300)
    onnx.save(leaky_sum(), tmp_path / "truth.onnx")
    truth = batched_inference(open_session(tmp_path / "truth.onnx"), samples).run(16)["y"].argmax(1)
    source = bring(leaky_sum(), samples | {"labels": truth})
    assert source.judge(tmp_path / "model.onnx").failures == ()
    onnx.save(leaky_sum(bias=0.1), tmp_path / "drifting.onnx")
    report = source.judge(tmp_path / "drifting.onnx", min_sqnr_db=-100, max_class_drop=1)
    failure = next(check for check in report.failures if check.name == "accuracy.sequence_max_accuracy_drop")
    assert "classes differ" in failure.detail
    assert "in which each model is fed its own states (h -> h_out)" in failure.detail


def test_sequence_ends_with_a_warning_where_the_source_overflows(bring) -> None:
    report = bring(leaky_sum(keep=1e6)).report
    (check,) = (check for check in report.checks if check.name == "train.sequence_steps")
    assert (check.passed, check.severity, check.limit) == (False, "warning", 21)
    assert 0 < float(check.value or 0) < 21
    assert "set train.states to []" in check.remedy
