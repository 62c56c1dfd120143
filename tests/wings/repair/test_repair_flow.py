"""A candidate that its accuracy gate rejects gets a second one beside it, in the real pipeline."""

from collections.abc import Callable

import onnx
import pytest
from harness import quick_config

from configs.schema import PipelineConfig
from flows.record.home import Home
from gauntlet.core.run_report import RunReport
from gauntlet.core.shipping import configured_stages
from gauntlet.runtime.processor import METADATA_KEY

Run = Callable[[PipelineConfig], RunReport]
ONE_RECIPE = ("optimize=[]", "quantize=[{kind: static}]", "repair.enabled=true")


@pytest.mark.slow
def test_rejected_candidate_is_repaired_and_takes_every_gate_again(run: Run, home: Home) -> None:
    first = run(quick_config(*ONE_RECIPE))
    plain = next(c for c in first.candidates if c.name == "static-u8s8")
    assert plain.sqnr_db is not None
    assert not any(c.name.endswith("-repaired") for c in first.candidates)

    # Whether it is faster is the machine's to say, so that gate is overridden: under the repaired candidate's own name.
    anyway = "{check: repair.min_speedup, reason: 'speed is not the question here', candidate: static-u8s8-repaired}"
    limit = f"accuracy.min_sqnr_db={plain.sqnr_db + 1}"
    config = quick_config(*ONE_RECIPE, limit, f"overrides=[{anyway}]")
    brought = configured_stages(config, "quantized")
    report = run(config)
    by_name = {c.name: c for c in report.candidates}
    assert by_name["static-u8s8"].status == "rejected"
    assert "accuracy.min_sqnr_db" in by_name["static-u8s8"].reason
    repaired = by_name["static-u8s8-repaired"]
    assert repaired.parent == "static-u8s8"
    assert repaired.sqnr_db >= plain.sqnr_db + 1
    judged = [s.stage for s in report.stages if s.candidate == repaired.name]
    assert judged == ["repair", "structure", "accuracy", *brought]
    assert repaired.benchmark
    assert repaired.artifact is not None
    proto = onnx.load(home.store.path(repaired.artifact))
    assert (METADATA_KEY in {p.key for p in proto.metadata_props}) == bool(brought)
