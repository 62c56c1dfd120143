"""Sessions: what this runtime takes, and how a refusal is told."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from gauntlet.core.errors import StageError
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import LEVELS, open_session, supported_ir_version, supported_opset


@pytest.mark.parametrize("level", LEVELS)
def test_session_answers_the_same_when_the_level_is_another(trained, level: str) -> None:
    golden = Golden.load(trained.store.path(trained.golden))
    inputs = {"input": golden.real.inputs["input"][:5]}
    actual = batched_inference(open_session(trained.path, level=level), inputs).run(5)["logits"]
    np.testing.assert_allclose(actual, golden.real.outputs["logits"][:5], rtol=0, atol=1e-5)


def test_session_is_refused_with_a_stage_error_when_the_model_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"hello")
    for model in (tmp_path / "m.onnx", tmp_path / "absent.onnx", b"hello"):
        with pytest.raises(StageError, match="refuses the model"):
            open_session(model)


def test_newest_versions_load_and_the_next_do_not_when_tried(trained) -> None:
    proto = trained.proto()
    proto.ir_version = supported_ir_version()
    open_session(proto.SerializeToString())
    proto.ir_version += 1
    if proto.ir_version <= onnx.IR_VERSION:
        with pytest.raises(StageError):
            open_session(proto.SerializeToString())
    assert 18 <= supported_opset() <= onnx.defs.onnx_opset_version()
