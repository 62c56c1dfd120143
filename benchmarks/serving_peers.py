"""The servers that serving_overhead.py compares: ours and two others, each around the same ONNX file.

MLServer and LitServe are in environments of their own; a user of either writes the few lines below around ONNX Runtime.
"""

import base64
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from free_ports import free_port

from gauntlet.core.arrays import NamedArrays
from gauntlet.runtime.resources import usable_threads
from serving.open_inference import binary_request
from serving.stages.serve.measurement import http_request

START_S = 90
JSON = {"content-type": "application/json"}
SESSION = """
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = {threads}
session = ort.InferenceSession({model!r}, options, providers=["CPUExecutionProvider"])
"""
LITSERVE = (
    SESSION
    + """
import base64, litserve
class Model(litserve.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request):
        return np.frombuffer(base64.b64decode(request["data"]), np.float32).reshape({shape})
    def predict(self, x): return session.run(None, {{{name!r}: x}})[0]
    def encode_response(self, output): return {{"output": output.tolist()}}
if __name__ == "__main__":
    server = litserve.LitServer(Model(), accelerator="cpu")
    server.run(host="127.0.0.1", port={port}, generate_client_file=False, log_level="warning")
"""
)
MLSERVER = (
    SESSION
    + """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
class Model(MLModel):
    async def load(self): return True
    async def predict(self, payload):
        x = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32)
        output = NumpyCodec.encode_output("y", session.run(None, {{{name!r}: x}})[0])
        return InferenceResponse(model_name=self.name, outputs=[output])
"""
)


@dataclass(frozen=True)
class Server:
    """A running server, and the request that it is sent."""

    port: int
    request: bytes
    pid: int


@contextmanager
def gauntlet(bundle: Path, name: str, sample: NamedArrays, *words: str) -> Iterator[Server]:
    """Start `gauntlet serve`."""
    port = free_port()
    command = [sys.executable, "-m", "flows.cli.main", "serve", bundle, "--port", str(port), "--log-level", "warning"]
    with _running([*map(str, command), *words], port) as pid:
        yield Server(port, http_request(f"/v2/models/{name}/infer", *binary_request(sample)), pid)


@contextmanager
def litserve(python: Path, model: Path, sample: NamedArrays, folder: Path) -> Iterator[Server]:
    """Start LitServe with the sample's bytes in base64, since it takes JSON."""
    port, [(name, array)] = free_port(), sample.items()
    code = LITSERVE.format(model=str(model), threads=usable_threads(), shape=array.shape, name=name, port=port)
    (folder / "lit.py").write_text(code)
    with _running([str(python), "lit.py"], port, folder) as pid:
        body = json.dumps({"data": base64.b64encode(array.tobytes()).decode()}).encode()
        yield Server(port, http_request("/predict", body, JSON), pid)


@contextmanager
def mlserver(python: Path, model: Path, sample: NamedArrays, folder: Path) -> Iterator[Server]:
    """Start MLServer without its parallel workers, which would only add a hop."""
    port, [(name, array)] = free_port(), sample.items()
    (folder / "served.py").write_text(MLSERVER.format(model=str(model), threads=usable_threads(), name=name))
    settings = {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port(), "parallel_workers": 0}
    (folder / "settings.json").write_text(json.dumps({**settings, "host": "127.0.0.1", "debug": False}))
    (folder / "model-settings.json").write_text(json.dumps({"name": "m", "implementation": "served.Model"}))
    with _running([str(python.with_name("mlserver")), "start", "."], port, folder) as pid:
        tensor = {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.ravel().tolist()}
        body = json.dumps({"inputs": [tensor]}).encode()
        yield Server(port, http_request("/v2/models/m/infer", body, JSON), pid)


@contextmanager
def _running(command: list[str], port: int, folder: Path | None = None) -> Iterator[int]:
    """Start a process, wait until it listens, and yield its number."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        time.sleep(1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=30)
