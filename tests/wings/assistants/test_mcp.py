"""`gauntlet mcp`, as the SDK's client speaks to it over stdio."""

import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import onnx
import onnx_text
import pytest
from harness import GAUNTLET, RACE

pytestmark = pytest.mark.slow
mcp = pytest.importorskip("mcp")

MODEL = """m (float[n,64] x) => (float[n,10] y) <float[64,64] v, float[64,10] w>
{ h = MatMul(x, v) r = Relu(h) y = MatMul(r, w) }"""
Talk = Callable[[Any], Awaitable[Any]]


def talked(folder: Path, talk: Talk) -> Any:
    """Start the server in a folder, talk to it, and return what the talk returns."""
    names = ("PATH", "PYTHONPATH", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING")
    own = {name: os.environ[name] for name in names if name in os.environ}
    own |= {"GAUNTLET_HOME": str(folder / "home"), "GAUNTLET_HOST_LOCK": str(folder / "lock")}
    server = mcp.StdioServerParameters(command=str(GAUNTLET), args=["mcp"], env=own, cwd=folder)

    async def session() -> Any:
        async with mcp.Client(server, read_timeout_seconds=600) as client:
            return await talk(client)

    return anyio.run(session)


def called(folder: Path, tool: str, **arguments: Any) -> tuple[bool, str]:
    """Call one tool; return whether it is an error, and its text."""
    result = talked(folder, lambda client: client.call_tool(tool, arguments))
    return result.is_error, result.content[0].text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Hides the one of this folder's conftest: nothing here needs a finished run."""
    onnx.save(onnx_text.model(MODEL), tmp_path / "model.onnx")
    return tmp_path


def test_tools_are_commands_with_their_words_and_hints(folder: Path) -> None:
    tools = {tool.name: tool for tool in talked(folder, lambda client: client.list_tools()).tools}
    assert tools["show"].annotations.read_only_hint
    assert not tools["run"].annotations.read_only_hint
    assert tools["run"].input_schema["required"] == ["config"]
    assert "classification" in tools["run"].input_schema["properties"]["task"]["enum"]
    assert "promote" not in tools


def test_tool_that_reads_gives_what_the_command_prints(folder: Path) -> None:
    is_error, text = called(folder, "validate", config=["model.onnx"])
    assert not is_error, text
    assert "model.onnx: valid" in text
    assert text.endswith("exit code 0")
    is_error, text = called(folder, "show")
    assert is_error
    assert "there is no report of a finished run" in text


def test_tool_that_reads_runs_no_code_that_a_configuration_names(folder: Path) -> None:
    pytest.importorskip("frameworks.torch")
    (folder / "nets.py").write_text("from pathlib import Path\nPath('ran').touch()\ndef make(): ...")
    (folder / "a.yaml").write_text("train: {kind: torch-model, factory: 'nets:make', weights: w.pt}")
    assert called(folder, "validate", config=["a.yaml"])[1].endswith("config: code is run from the command line alone")
    assert not (folder / "ran").exists()


def test_run_that_would_loosen_a_gate_is_refused_before_anything_runs(folder: Path) -> None:
    is_error, text = called(folder, "run", config="model.onnx", set=["accuracy.min_sqnr_db=1"])
    assert is_error
    assert text == "set: accuracy.min_sqnr_db=1: an assistant cannot loosen a gate; accuracy.min_sqnr_db is 6.0"
    is_error, text = called(folder, "promote", source="run")
    assert is_error
    assert "unknown tool 'promote'" in text
    assert not (folder / "home").exists()


@pytest.mark.usefixtures("prefect_server")
def test_run_ends_with_its_verdict_also_where_a_tighter_gate_fails(folder: Path) -> None:
    free = [setting for setting in RACE if "restart" not in setting] + ["quantize=[]"]
    is_error, text = called(folder, "run", config="model.onnx", set=[*free, "structure.max_opset=7"])
    assert not is_error, text
    assert "structure.max_opset" in text
    assert text.endswith("exit code 1")


def test_server_ends_at_once_though_its_client_keeps_the_connection(folder: Path) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    pipe = subprocess.PIPE
    with subprocess.Popen([GAUNTLET, "mcp"], cwd=folder, stdin=pipe, stdout=pipe) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"{json.dumps(message)}\n".encode())
        server.stdin.flush()
        assert server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        try:
            assert server.wait(60) == -signal.SIGTERM
        finally:
            server.kill()
