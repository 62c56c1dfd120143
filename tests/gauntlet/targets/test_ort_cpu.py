"""The options of an ONNX Runtime session: named, passed to the runtime, and kept in a bundle."""

from pathlib import Path

import onnx
import onnx_text
import pytest

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.race.session_options import describe_sessions
from gauntlet.runtime.engines.ort import OrtEngine
from gauntlet.runtime.session import open_session
from gauntlet.targets.ort import OrtCpu

BLOCKS = "session.dynamic_block_base"
ALL = OrtCpu(
    threads=2,
    memory_pattern=False,
    inter_op_threads=1,
    config_entries={BLOCKS: "4"},
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx_text.model("m (float[n,4] x) => (float[n,4] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_options_that_change_the_computation_are_in_the_name() -> None:
    assert ALL.name == f"ort-cpu-2t-nopattern-1branches-{BLOCKS}=4"


def test_options_reach_the_session_of_a_worker_and_that_of_a_bundle(model: Path) -> None:
    raced = OrtEngine(model, 4, ALL.options()).session
    shipped = open_session(model, overrides=ALL.session_options(4))
    for session in (raced, shipped):
        options = session.get_session_options()
        assert not options.enable_mem_pattern
        assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 1)
        assert options.get_session_config_entry(BLOCKS) == "4"


def test_entry_that_no_bundle_may_have_is_refused_before_the_race() -> None:
    library = OrtCpu(config_entries={"session.load_model_format": "ORT"})
    with pytest.raises(ConfigError, match=r"session\.load_model_format, which a bundle may not have \(allowed: "):
        describe_sessions([OrtCpu(), library], 2, 2)
    with pytest.raises(StageError, match=r"session\.load_model_format.* is not allowed"):
        open_session(b"", overrides=library.session_options(2))
