"""A detector is judged in calls of every batch size."""

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.signature import BoxDecoding, signature_from_graph
from gauntlet.datasets.golden import Golden
from gauntlet.problems import problem_of
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.accuracy import _batch_check


def boxes_of_any_batch(shift: str) -> onnx.ModelProto:
    """Return a detector of three objects in each image, as its pixels say, with boxes that are shifted."""
    return onnx_text.model(
        f"""boxes (float[n,3,16,16] images) => (float[n,3,4] b, float[n,3] s, int64[n,3] c)
        <int64[1] begin = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] last = {{3}},
         int64[1] four = {{4}}, float[1] none = {{0}}, float[1] large = {{7}}, float[4] corner = {{0, 0, 9, 9}}>
        {{
            rows = Shape<start = 0, end = 1>(images)
            cut = Slice(images, begin, four, last)
            top = Slice(cut, begin, one, two)
            flat = Squeeze(top, two)
            b0 = Abs(flat)
            b1 = Add(b0, corner)
            {shift}
            mean = ReduceMean<keepdims = 0>(flat, two)
            s = Sigmoid(mean)
            zeros = Mul(mean, none)
            c = Cast<to = 7>(zeros)
        }}"""
    )


@pytest.mark.parametrize("at", [1, 3])
def test_detector_whose_boxes_are_elsewhere_at_one_batch_size_is_refused(at: int) -> None:
    samples = {"images": np.random.default_rng(0).random((20, 3, 16, 16), np.float32)}
    decode = BoxDecoding(kind="suppressed", scores="s", boxes="b", classes="c")
    right = boxes_of_any_batch("b = Identity(b1)")
    where = f"place = Constant<value_ints = [{at}]>() alone = Equal(rows, place) far = Add(b1, large)"
    wrong = boxes_of_any_batch(f"{where} b = Where(alone, far, b1)")
    signature = signature_from_graph(right).replace(task="detection", labels=("a",), decode=decode, layout="NCHW")
    for model, fine in ((right, True), (wrong, False)):
        session = open_session(model.SerializeToString())
        golden = Golden({}, batched_inference(session, samples).run(16))
        facts = compare_accuracy(golden, signature, golden.test_outputs)
        [check] = _batch_check(AccuracyLimits(), facts, problem_of(signature), session, samples, (1, 3))
        assert check.passed is fine
        assert fine or f"detections, batch size {at}: " in check.detail
