"""Malformed requests to the server of `served_bundles.brightness_bundle`: each kind from a random generator."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from served_bundles import SIZE
from server_process import json_request

from serving.open_inference import binary_request

PATH = "/v2/models/brightness/infer"
IMAGE = {"image": np.zeros((1, 1, SIZE, SIZE), np.float32)}
Sent = tuple[str, bytes, dict[str, str]]
STRANGE = (None, True, -1, 2**70, 1e400, "", "x" * 300, [], {}, [[]], [[1], [1, 2]], {"a": 1}, "NaN", [None], [10**400])
LIMITS = ("--max-body-mb", "0.2", "--max-rows", "64", "--read-timeout-s", "1", "--max-image-megapixels", "1")
"""Of the server."""


def broken_field(rng: random.Random) -> Sent:
    """Put a strange value where the protocol has another."""
    body: dict[str, Any] = json_request(IMAGE, outputs=[{"name": "y"}])
    tensor = body["inputs"][0]
    of_tensor = [(tensor, key) for key in ("name", "shape", "datatype", "data")]
    owner, key = rng.choice([*of_tensor, (body, "inputs"), (body["outputs"][0], "name")])
    owner[key] = rng.choice(STRANGE)
    return PATH, json.dumps(body).encode(), {}


def broken_shape(rng: random.Random) -> Sent:
    body: dict[str, Any] = json_request(IMAGE)
    body["inputs"][0]["shape"] = [rng.choice((0, 1, 2, -1, SIZE, 2**31, 2**40)) for _ in range(rng.randrange(6))]
    if body["inputs"][0]["shape"] == [1, 1, SIZE, SIZE]:
        body["inputs"][0]["shape"] = []
    return PATH, json.dumps(body).encode(), {}


def broken_value(rng: random.Random) -> Sent:
    body: dict[str, Any] = json_request(IMAGE)
    flat = [0.5] * SIZE * SIZE
    flat[rng.randrange(len(flat))] = rng.choice((None, "1", True, [], {}, 10**400, "é" * 9000))  # type: ignore[call-overload]
    body["inputs"][0]["data"] = flat
    return PATH, json.dumps(body).encode(), {}


def truncated(rng: random.Random) -> Sent:
    body, headers = rng.choice((binary_request(IMAGE), (json.dumps(json_request(IMAGE)).encode(), {})))
    return PATH, body[: rng.randrange(len(body))], headers


def noise(rng: random.Random) -> Sent:
    return PATH, rng.randbytes(rng.randrange(2000)), rng.choice(({}, {"inference-header-content-length": "10"}))


def wrong_length_header(rng: random.Random) -> Sent:
    body, headers = binary_request(IMAGE)
    near = str(len(body) + 1), str(int(headers["inference-header-content-length"]) - 1)
    wrong = rng.choice(("-1", "0", "abc", "9" * 30, "1e3", " ", *near))
    return PATH, body, {**headers, "inference-header-content-length": wrong}


def wrong_binary_size(rng: random.Random) -> Sent:
    size = rng.choice((-1, 0, 1, 255, 257, 2**63, True, "256", 1.5))
    body, headers = binary_request(IMAGE)
    place = int(headers["inference-header-content-length"])
    head = json.loads(body[:place])
    head["inputs"][0]["parameters"]["binary_data_size"] = size
    text = json.dumps(head).encode()
    return PATH, text + body[place:], {**headers, "inference-header-content-length": str(len(text))}


def broken_timeout(rng: random.Random) -> Sent:
    timeout = rng.choice((-1, True, "1", 1.5, 2**63, 10**400))
    return PATH, json.dumps(json_request(IMAGE, parameters={"timeout": timeout})).encode(), {}


def too_large(rng: random.Random) -> Sent:
    rows = rng.choice((65, 100, 2000))
    body, headers = binary_request({"image": np.zeros((rows, 1, SIZE, SIZE), np.float32)})
    return PATH, body, headers


def other_extension(rng: random.Random) -> Sent:
    name = rng.choice(("shared_memory_region", "classification"))
    body = json_request(IMAGE, outputs=[{"name": "y", "parameters": {name: 1}}])
    return PATH, json.dumps(body).encode(), {}


def compressed(rng: random.Random) -> Sent:
    return PATH, rng.randbytes(50), {"content-encoding": rng.choice(("gzip", "deflate", "br", "x"))}


def deep(rng: random.Random) -> Sent:
    depth = rng.choice((60, 70, 150, 5000, 50_000))
    text = json.dumps(json_request(IMAGE)).encode()
    start = text.index(b'"data": ') + 8
    return PATH, text[:start] + b"[" * depth + b"]" * depth + b"}]}", {}


def bad_image(rng: random.Random) -> Sent:
    bomb = b"P5 9000 9000 255\n" + bytes(100)
    picture = rng.choice((bomb, rng.randbytes(100), b"\x89PNG\r\n\x1a\n" + rng.randbytes(60), b"GIF89a", b"%!PS-Adobe"))
    return "/v2/models/brightness/predict", picture, {"content-type": rng.choice(("image/png", "text/plain", ""))}


def bad_form(rng: random.Random) -> Sent:
    kind = "multipart/form-data" + rng.choice(("", "; boundary=x", "; boundary=" + "y" * 5000))
    no_file = b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--x--\r\n"
    body = rng.choice((b"", b"--x\r\n\r\nno name\r\n--x--\r\n", b"--x--", rng.randbytes(200), no_file))
    return "/v2/models/brightness/predict", body, {"content-type": kind}


def bad_repository_request(rng: random.Random) -> Sent:
    path = rng.choice(("index", "models/brightness/load", "models/brightness/unload", "models/no/load"))
    wrong = b'{"ready": 1, "parameters": []}', b'{"ready": "x", "parameters": {"config": "{}"}}'
    body = rng.choice((b"[", b"[]", b"1", *wrong))
    return f"/v2/repository/{path}", body, {}


KINDS: list[Callable[[random.Random], Sent]] = [
    broken_field, broken_shape, broken_value, truncated, noise, wrong_length_header, wrong_binary_size, broken_timeout,
    too_large, other_extension, compressed, deep, bad_image, bad_form, bad_repository_request,
]  # fmt: skip
