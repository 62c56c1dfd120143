"""Loading a model on a processor that it is not made for. The processors are values; nothing is patched."""

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.errors import StageError
from gauntlet.runtime.processor import EXACT_KERNELS, METADATA_KEY, Processor, portability_metadata, session_settings
from gauntlet.runtime.session import open_session

HASWELL = Processor("x86_64", frozenset({"sse4_1", "avx", "avx2", "fma"}))
CASCADE_LAKE = Processor("x86_64", HASWELL.flags | {"avx512f", "avx512bw", "avx512_vnni"})
SKYLAKE = Processor("x86_64", HASWELL.flags | {"avx512f", "avx512bw"})
ALDER_LAKE = Processor("x86_64", HASWELL.flags | {"avx_vnni"})
NEHALEM = Processor("x86_64", frozenset({"sse4_1"}))
GRAVITON = Processor("aarch64", frozenset({"asimd", "asimddp"}))
NEEDS = {
    mode: portability_metadata("needs VNNI", needs_vnni=True, elsewhere=mode) for mode in ("warn", "refuse", "exact")
}


def model(metadata: dict[str, str]) -> bytes:
    proto = onnx_text.model("relu (float[n] x) => (float[n] y) { y = Relu(x) }")
    onnx.helper.set_model_props(proto, metadata)
    return proto.SerializeToString()


def test_only_avx2_without_vnni_saturates() -> None:
    assert HASWELL.saturates
    assert SKYLAKE.saturates
    assert not any(p.saturates for p in (CASCADE_LAKE, ALDER_LAKE, NEHALEM, GRAVITON))
    assert Processor.current().architecture


def test_model_that_needs_vnni_warns_on_a_processor_without(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gauntlet"):
        session = open_session(model(NEEDS["warn"]), processor=HASWELL)
    assert "needs a processor with VNNI" in caplog.text
    np.testing.assert_array_equal(session.run(None, {"x": np.array([-1, 2], np.float32)})[0], [0, 2])


@pytest.mark.parametrize("processor", [CASCADE_LAKE, ALDER_LAKE, NEHALEM, GRAVITON])
def test_model_that_needs_vnni_loads_in_silence_where_it_is_right(
    processor: Processor, caplog: pytest.LogCaptureFixture
) -> None:
    open_session(model(NEEDS["refuse"]), processor=processor)
    assert not caplog.text


def test_model_refuses_a_processor_without_vnni_when_it_is_told_to() -> None:
    with pytest.raises(StageError, match=r"needs a processor with VNNI.*Fix: .*reduce_range"):
        open_session(model(NEEDS["refuse"]), processor=HASWELL)


def test_model_takes_exact_kernels_where_it_would_saturate() -> None:
    session = open_session(model(NEEDS["exact"]), processor=HASWELL)
    assert session.get_session_options().get_session_config_entry(EXACT_KERNELS) == "1"
    with pytest.raises(RuntimeError):
        open_session(model(NEEDS["exact"]), processor=GRAVITON).get_session_options().get_session_config_entry(
            EXACT_KERNELS
        )


@pytest.mark.parametrize("processor", [HASWELL, CASCADE_LAKE, GRAVITON, Processor.current()])
def test_snippet_of_the_page_takes_exact_kernels_where_the_model_would_saturate(
    processor: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "ship-int8-on-other-processors.md").read_text(
        encoding="utf-8"
    )
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, metadata in {"needs": NEEDS["warn"], "safe": {}}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.onnx").write_bytes(model(metadata))
        monkeypatch.chdir(folder)
        cpuinfo = f"flags : {' '.join(processor.flags)}"
        monkeypatch.setattr(Path, "read_text", lambda *_, cpuinfo=cpuinfo: cpuinfo)
        found: dict[str, Any] = {}
        exec(snippet, found)
        monkeypatch.undo()
        assert ("options" in found) == (name == "needs" and processor.saturates)
        assert found["session"].run(None, {"x": np.ones(1, np.float32)})


@pytest.mark.parametrize("elsewhere", ["warn", "refuse", "exact"])
def test_safe_model_loads_in_silence_everywhere(elsewhere: str, caplog: pytest.LogCaptureFixture) -> None:
    safe = portability_metadata("safe", needs_vnni=False, elsewhere=elsewhere)  # type: ignore[arg-type]
    assert session_settings(safe, HASWELL) == session_settings({}, HASWELL) == {}
    assert not caplog.text


@pytest.mark.parametrize("told", ["not JSON", "[]", '"text"'])
def test_damaged_statement_warns_and_stops_nothing(told: str, caplog: pytest.LogCaptureFixture) -> None:
    assert session_settings({METADATA_KEY: told}, HASWELL) == {}
    assert "cannot be read" in caplog.text
