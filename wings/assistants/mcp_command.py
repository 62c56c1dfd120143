"""`gauntlet mcp`: a server of the Model Context Protocol on stdin and stdout, whose tools are commands."""

import argparse
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import anyio
from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server

from gauntlet.core.errors import PipelineError
from wings.assistants.offered_commands import OfferedCommand, offered_commands

INSTRUCTIONS = """onnx-gauntlet makes ONNX models smaller and faster, and proves that they stay accurate. `run` takes
minutes. A failed gate (exit code 1) is a result to report: its limit cannot be loosened here."""
FAILED = 2
"""The lowest exit code that is an error of the call; 1 is a verdict."""


def serve(_options: argparse.Namespace) -> int:
    """Answer until the assistant closes the connection."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # at once: a thread waits for the next line of the client
    anyio.run(_serve)
    return 0


async def _serve() -> None:
    commands = offered_commands()

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(command) for command in commands.values()])

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in commands:
            return _result(f"unknown tool {params.name!r}; available: {', '.join(commands)}", is_error=True)
        try:
            words = commands[params.name].words(params.arguments or {})
        except PipelineError as error:
            return _result(str(error), is_error=True)
        return await _called(words)

    server: Server[Any] = Server(
        "onnx-gauntlet",
        version=version("onnx-gauntlet"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def _tool(command: OfferedCommand) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=command.only_reads, destructive_hint=False)
    return types.Tool(name=command.name, description=command.help, input_schema=command.schema(), annotations=hints)


async def _called(words: list[str]) -> types.CallToolResult:
    """Run a command in a process of its own: its output is not the protocol's, and ends with it if it is cancelled."""
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-P", "-m", "gauntlet", *words]
    done = await anyio.run_process(command, stdin=subprocess.DEVNULL, check=False, env=environment)
    text = (done.stdout + done.stderr).decode(errors="replace")
    return _result(f"{text}\nexit code {done.returncode}", is_error=not 0 <= done.returncode < FAILED)


def _result(text: str, *, is_error: bool) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)
