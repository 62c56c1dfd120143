"""What one client can take of a server's memory and time, whatever it sends and however slowly."""

import asyncio
import io
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_text
import pytest
import uvicorn
from PIL import Image
from served_bundles import SIZE, brightness_bundle, write_bundle
from server_process import ServerProcess, json_request, serving
from small_images import gray_png, tiff_of_pages
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from gauntlet.core.signature import Preprocessing, TensorSpec, signature_from_graph
from gauntlet.images.decoding import decode_image
from serving import http_protocol
from serving.body import HeldBodies, received_body
from serving.errors import InvalidRequest, Overloaded, TooLarge
from serving.http_protocol import JoiningProtocol
from serving.image_decoders import ImageDecoders
from serving.infer_codec import InferCall, encode_response, from_bytes, from_json
from serving.observations import Metrics
from serving.routes import inference
from serving.served_model import ServedModel
from serving.settings import Limits

pytestmark = pytest.mark.slow
INFER, PREDICT = "/v2/models/brightness/infer", "/v2/models/brightness/predict"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bounds")
    with serving(folder, brightness_bundle(folder / "b", latencies=[(1, 1.0)])) as running:
        yield running


def peak_mb(server: ServerProcess) -> float:
    """Return the largest resident memory that the server has had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


def test_images_of_a_request_are_bounded_together(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("1", (5650, 5650)).save(stream, "PNG")  # 4 kB
    part = b'--x\r\ncontent-disposition: form-data; name="image"; filename="i"\r\n\r\n' + stream.getvalue() + b"\r\n"
    with serving(tmp_path, brightness_bundle(tmp_path / "b"), "--deadline-ms", "60000") as server:
        before = peak_mb(server)
        body = 40 * part + b"--x--\r\n"
        response = server.request("POST", PREDICT, body, content_type="multipart/form-data; boundary=x")
        assert response.status == 400
        assert response.error.startswith("image 1: 5650x5650 pixels; at most 77500 are allowed for the rest")
        assert peak_mb(server) - before < 400


def test_file_of_many_pages_is_refused_at_once(server: ServerProcess) -> None:
    before = peak_mb(server)
    response = server.post(PREDICT, tiff_of_pages(60_000))
    assert (response.status, "several frames" in response.error) == (400, True)
    assert peak_mb(server) - before < 100


def endless_jpeg() -> bytes:
    """Return 660 kB that take a decoder some minutes: 20,000 scans over 16 million pixels."""
    stream = io.BytesIO()
    Image.new("L", (4000, 4000)).save(stream, "JPEG", progressive=True, quality=5)
    content = stream.getvalue()
    start = content.rfind(b"\xff\xda")
    return content[:start] + 20_000 * content[start:-2] + content[-2:]


def test_image_that_takes_longer_than_the_deadline_is_ended(server: ServerProcess) -> None:
    response = server.post(PREDICT, endless_jpeg())
    assert (response.status, "were not decoded within" in response.error) == (429, True)


def test_decoder_that_was_ended_is_replaced_and_none_begins_too_late(white_png: bytes) -> None:
    decoders = ImageDecoders(1)
    for _ in range(2):
        with pytest.raises(Overloaded, match="decoded"):
            decoders.decode([endless_jpeg()], 1, 1 << 24, time.perf_counter() + 1)
        [pixels] = decoders.decode([white_png], 1, 1 << 24, time.perf_counter() + 600)
        assert (pixels == decode_image(white_png, 1)).all()
    with pytest.raises(Overloaded, match="other images were decoded until the deadline"):
        decoders.decode([white_png], 1, 1 << 24, time.perf_counter())


def test_images_are_not_preprocessed_beyond_the_deadline(tmp_path: Path) -> None:
    model = ServedModel.load(brightness_bundle(tmp_path / "b", latencies=[(1, 1.0), (2, 1.0)]), Metrics(), Limits())
    images = 2 * [np.zeros((9, 9, 1), np.uint8)]
    [inputs], padding = model.image_inputs(images, math.inf)
    assert (inputs["image"].shape, padding) == ((2, 1, SIZE, SIZE), 0)
    with pytest.raises(Overloaded, match="not preprocessed within the deadline"):
        model.image_inputs(images, time.perf_counter())
    model.batcher.close()


@pytest.mark.parametrize("path", ["index", "models/brightness/load", "models/brightness/unload"])
def test_requests_without_inputs_are_small(server: ServerProcess, path: str) -> None:
    before = peak_mb(server)
    response = server.post(f"/v2/repository/{path}", b'{"parameters": {"a": [' + 5_000_000 * b"{}," + b"0]}}")
    assert (response.status, response.error) == (413, "the body is larger than 1 MB")
    assert peak_mb(server) - before < 100


def test_json_larger_than_the_inputs_is_refused_unparsed(server: ServerProcess) -> None:
    body = json_request({"image": np.zeros((1, 1, SIZE, SIZE), np.float32)})
    body["inputs"][0]["data"] = [1.5] * 2_500_000  # less than any request may have
    before = peak_mb(server)
    response = server.post(INFER, body)
    assert (response.status, "Fix: send binary tensors" in response.error) == (413, True)
    assert peak_mb(server) - before < 150
    assert server.post(INFER, json_request({"image": np.zeros((256, 1, SIZE, SIZE), np.float32)})).status == 200


def test_large_json_and_texts_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, here = list[int](), threading.get_ident()
    monkeypatch.setattr(inference, "decode_request", lambda *_: threads.append(threading.get_ident()))
    for size, json_length, dtype in ((1000, None, "float32"), (1_000_000, None, "float32"), (1_000_000, "1000", "str")):
        signature = SimpleNamespace(inputs=[TensorSpec(name="x", dtype=dtype, shape=("n", 1 << 20))])
        asyncio.run(inference._decoded(bytes(size), json_length, SimpleNamespace(signature=signature), 1))
    assert [thread == here for thread in threads] == [True, False, False]


def test_values_that_numpy_would_change_and_too_many_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="300000 strings; at most 262144"):
        from_bytes("x", "BYTES", (300_000,), memoryview(bytes(4 * 300_000)))
    with pytest.raises(InvalidRequest, match="ends with the character NUL"):
        from_json("x", "BYTES", (2,), ["a", "a\0"])
    for datatype, value in (("FP32", 1e39), ("FP16", 7e4), ("UINT8", 256), ("FP64", float("1e400"))):
        with pytest.raises(InvalidRequest, match=f"a value is outside the range of {datatype}"):
            from_json("x", datatype, (2,), [1, value])
    call, values = InferCall(None, {}, {"y": False}, None), np.zeros((1 << 24) + 1, np.uint8)
    with pytest.raises(TooLarge, match="at most 16777216 come as JSON"):
        encode_response(call, {"y": values}, "m", "1")
    several = InferCall('"data":[]', {}, {"y": False, "none": False, "x": False}, None)
    y = np.r_[values[:9999], 1, np.nan]
    text, _ = encode_response(several, {"y": y, "none": values[:0], "x": values[:1]}, "m", "1")
    body = json.loads(text)
    assert body["outputs"][0]["data"][9998:] == [0, 1, "NaN"]
    assert [body["id"], *(output["data"] for output in body["outputs"][1:])] == ['"data":[]', [], [0]]


@pytest.mark.parametrize("path", ["infer", "predict"])
def test_server_responds_while_large_outputs_are_written(tmp_path: Path, path: str) -> None:
    proto = onnx_text.model(
        f"""masks (float[n, 1, {SIZE}, {SIZE}] image) => (float[n, 3, 512, 512] y)
        <float[1, 3, 1, 1] w, int64[4] shape> {{
          mean = GlobalAveragePool(image) classes = Mul(mean, w) y = Expand(classes, shape)
        }}""",
        {"w": np.array([-1, 0, 1], np.float32).reshape(1, 3, 1, 1), "shape": np.array([1, 1, 512, 512])},
    )
    signature = signature_from_graph(proto).replace(
        task="segmentation",
        primary_output="y",
        labels=("a", "b", "c"),
        layout="NCHW",
        preprocessing=Preprocessing(height=SIZE, width=SIZE, scale=1 / 255, mean=(0.0,), std=(1.0,)),
    )
    golden = {"image": np.full((2, 1, SIZE, SIZE), 0.5, np.float32)}
    bundle = write_bundle(tmp_path / "b", proto.SerializeToString(), signature, golden, name="masks")
    part = b'--x\r\ncontent-disposition: form-data; name="image"; filename="a"\r\n\r\n%s\r\n' % gray_png(255)
    body = (
        8 * part + b"--x--" if path == "predict" else json.dumps(json_request({"image": golden["image"].repeat(2, 0)}))
    )
    longest = 0.0
    with serving(tmp_path, bundle, "--deadline-ms", "60000") as server, ThreadPoolExecutor(1) as pool:
        begin = time.monotonic()
        asked = pool.submit(
            server.post, f"/v2/models/masks/{path}", body, content_type="multipart/form-data; boundary=x"
        )
        while not asked.done():
            start = time.monotonic()
            assert server.get("/v2/health/ready").status == 200
            longest = max(longest, time.monotonic() - start)
        assert asked.result().status == 200
        assert longest < (time.monotonic() - begin) / 3


@pytest.mark.parametrize("path", [PREDICT, INFER])
def test_clock_begins_when_the_body_has_arrived(server: ServerProcess, white_png: bytes, path: str) -> None:
    took, tensors = "gauntlet_request_duration_seconds_sum", {"image": np.zeros((1, 1, SIZE, SIZE), np.float32)}
    body, before = white_png if path == PREDICT else json.dumps(json_request(tensors)).encode(), server.metric(took)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head.encode() + body[:20])
        time.sleep(2)
        connection.sendall(body[20:])
        response = b"".join(iter(lambda: connection.recv(65536), b""))
    assert response.startswith(b"HTTP/1.1 200")
    assert 0 < server.metric(took) - before < 2


def test_bodies_of_requests_in_progress_are_bounded_together() -> None:
    assert HeldBodies.of(Limits()).max_bytes == 512_000_000
    held = HeldBodies(100)
    scope = {"type": "http", "headers": [], "app": SimpleNamespace(state=SimpleNamespace(bodies=held))}

    async def hold(size: int, *others: int) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": bytes(size)}

        async with received_body(Request(scope, receive), Limits()):
            await hold(*others) if others else None

    asyncio.run(hold(60, 40))
    with pytest.raises(Overloaded, match="in progress"):
        asyncio.run(hold(60, 41))
    assert held.held_bytes == 0


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    while scope["method"] != "PUT" and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server of this process, which waits for a head for half a second."""
    assert (http_protocol.HEAD_TIMEOUT_S, http_protocol.MAX_HEAD_BYTES) == (10, 65_536)
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(hello, http=JoiningProtocol, ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


def received(connection: socket.socket) -> bytes:
    """Return what comes until the server closes the connection."""
    try:
        return b"".join(iter(lambda: connection.recv(65536), b""))
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nhost: x\r\nslow: "])
def test_connection_without_a_whole_head_is_ended(port: int, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(start)
        assert received(connection) == b""


@pytest.mark.parametrize("more", [b"\r\n", b"x"], ids=["line", "rest of a body"])
def test_connection_is_ended_on_which_little_follows_a_response(port: int, more: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (9 if more == b"x" else 0))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(more)
        assert received(connection) in (b"", b"hi")


@pytest.mark.parametrize(
    "start",
    [b"GET / HTTP/1.1\r\nlong: ", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\ntrailer: "],
    ids=["header", "trailer"],
)
def test_endless_header_ends_the_connection(port: int, start: bytes) -> None:
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(start)
        try:
            while sent < 120_000_000:
                connection.sendall(1_000_000 * b"x")
                sent += 1_000_000
        except (ConnectionError, TimeoutError):
            pass
    assert sent < 20_000_000


def test_body_may_come_slowly_and_be_large(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000001\r\nconnection: close\r\n\r\n")
        time.sleep(1)
        connection.sendall(1_000_000 * b"x")
        time.sleep(0.5)
        connection.sendall(b"x")
        assert received(connection).startswith(b"HTTP/1.1 200")
