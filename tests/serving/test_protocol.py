"""The Open Inference Protocol, JSON and binary, against a real server process."""

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_text
import pytest
from detector_models import SIDE, suppressed
from detector_models import images as detector_images
from image_models import HEIGHT, WIDTH
from PIL import Image
from pixel_bundles import SIZES, pixel_bundles, png
from served_bundles import SIZE, brightness_bundle, write_bundle
from server_process import ServerProcess, binary_outputs, json_request, serving

import gauntlet
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.signature import BoxDecoding, Preprocessing, Signature, TensorSpec, signature_from_graph
from serving.open_inference import binary_request

KINDS = {"half": "float16", "real": "float32", "whole": "int64", "byte": "uint8", "flag": "bool", "text": "str"}
ONNX_KINDS = {"float32": "float", "str": "string"}


def every_type_bundle(folder: Path) -> Path:
    """Return its inputs as they are, one for each kind of type."""
    inputs = ", ".join(f"{ONNX_KINDS.get(kind, kind)}[n, 2] {name}" for name, kind in KINDS.items())
    outputs = ", ".join(f"{ONNX_KINDS.get(kind, kind)}[n, 2] {name}_out" for name, kind in KINDS.items())
    nodes = " ".join(f"{name}_out = Identity({name})" for name in KINDS)
    proto = onnx_text.model(f"every_type ({inputs}) => ({outputs}) {{ {nodes} }}")
    signature = Signature(
        task="arrays",
        inputs=tuple(TensorSpec(name=name, dtype=kind, shape=("n", 2)) for name, kind in KINDS.items()),
        outputs=tuple(TensorSpec(name=f"{name}_out", dtype=kind, shape=("n", 2)) for name, kind in KINDS.items()),
        layout="none",
    )
    return write_bundle(folder, proto.SerializeToString(), signature, samples(), name="every-type")


def suppressed_bundle(folder: Path) -> Path:
    """A detector that takes one image without a batch axis, and returns a row for each object."""
    proto = suppressed("six", scale=8.0)
    onnx_text.extend(proto, "<int64[1] batch = {0}> { images = Unsqueeze(picture, batch) }", 0)
    proto.graph.input[0].name = "picture"
    del proto.graph.input[0].type.tensor_type.shape.dim[0]
    signature = signature_from_graph(proto).replace(
        task="detection",
        decode=BoxDecoding(kind="suppressed", scores="detections", shown_score=0.25),
        preprocessing=Preprocessing(height=SIDE, width=SIDE, scale=1 / 255, mean=(0.5,) * 3, std=(0.1,) * 3),
        layout="NCHW",
    )
    signature.write(proto)
    return write_bundle(
        folder, proto.SerializeToString(), signature, {"picture": detector_images(8)}, name="suppressed"
    )


def samples(count: int = 4) -> dict[str, np.ndarray]:
    values = np.arange(2 * count).reshape(count, 2)
    found = {name: (values % 2 if kind == "bool" else values).astype(kind) for name, kind in KINDS.items()}
    return {**found, "text": np.array([["é", ""]] * count)}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {
        "brightness": brightness_bundle(folder / "brightness", latencies=[(1, 1.0), (8, 2.0)]),
        "fixed": brightness_bundle(folder / "fixed", batch=4, name="fixed"),
        "every-type": every_type_bundle(folder / "every-type"),
        "suppressed": suppressed_bundle(folder / "suppressed"),
    }


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("server"), *bundles.values()) as running:
        yield running


def images(count: int) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(count).random((count, 1, SIZE, SIZE), np.float32)}


def expected(bundle: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(Predictor(Bundle.open(bundle), threads=1).run(inputs)["y"])


def test_json_and_binary_have_the_outputs_of_the_predictor(server: ServerProcess, bundles: dict[str, Path]) -> None:
    inputs = images(3)
    wanted = expected(bundles["brightness"], inputs)
    body, headers = binary_request(inputs)
    response = server.post("/v2/models/brightness/infer", body, **headers)
    assert response.status == 200
    np.testing.assert_allclose(binary_outputs(response)["y"], wanted, rtol=1e-5)
    found = server.post("/v2/models/brightness/infer", json_request(inputs, id="seven")).json()
    assert found["id"] == "seven"
    assert found["model_name"] == "brightness"
    assert found["model_version"] == Bundle.open(bundles["brightness"]).digest[:12]
    [output] = found["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [3, 3])
    np.testing.assert_allclose(np.reshape(output["data"], (3, 3)), wanted, rtol=1e-5)


def test_flat_and_nested_json_are_the_same(server: ServerProcess) -> None:
    nested = json_request(images(2))
    flat = json.loads(json.dumps(nested))
    flat["inputs"][0]["data"] = np.ravel(nested["inputs"][0]["data"]).tolist()
    answers = [server.post("/v2/models/brightness/infer", body).json()["outputs"] for body in (nested, flat)]
    assert answers[0] == answers[1]


def test_every_type_comes_back_as_it_was_in_json(server: ServerProcess) -> None:
    found = server.post("/v2/models/every-type/infer", json_request(samples(3)))
    assert found.status == 200, found.body
    outputs = {entry["name"]: entry for entry in found.json()["outputs"]}
    for name, array in samples(3).items():
        assert outputs[f"{name}_out"]["data"] == array.ravel().tolist()
    assert outputs["half_out"]["datatype"] == "FP16"
    assert outputs["text_out"]["datatype"] == "BYTES"


def test_every_type_comes_back_as_it_was_in_binary(server: ServerProcess) -> None:
    arrays = samples(3)
    text = b"".join(struct.pack("<I", len(s.encode())) + s.encode() for s in arrays["text"].ravel().tolist())
    raw = {name: text if name == "text" else array.tobytes() for name, array in arrays.items()}
    body = json_request(arrays, parameters={"binary_data_output": True})
    for tensor in body["inputs"]:
        del tensor["data"]
        tensor["parameters"] = {"binary_data_size": len(raw[tensor["name"]])}
    head = json.dumps(body).encode()
    response = server.post(
        "/v2/models/every-type/infer", head + b"".join(raw.values()), inference_header_content_length=str(len(head))
    )
    assert response.status == 200, response.body
    place = int(response.headers["inference-header-content-length"])
    assert response.body[place:] == b"".join(raw.values())


def test_offer_of_another_protocol_is_ignored_or_the_client_is_told_what_to_change(server: ServerProcess) -> None:
    body, port = json.dumps(json_request(images(1))).encode(), server.port
    offer = b"connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"  # as Java's client makes it, at first
    head = b"POST /v2/models/brightness/infer HTTP/1.1\r\nhost: localhost\r\n" + offer
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        assert connection.recv(9000).startswith(b"HTTP/1.1 200 ")
        connection.sendall(head)
        time.sleep(0.5)  # so that the rest is not in the same part
        connection.sendall(b"content-length: 99\r\n\r\n")
        response = connection.recv(9000)
        assert b"Fix: ask in HTTP/1.1 alone" in response
        assert b"connection: close" in response  # its body is no request
        assert connection.recv(9000) == b""


def test_only_asked_outputs_come_each_in_its_own_form(server: ServerProcess) -> None:
    asked = [{"name": "whole_out", "parameters": {"binary_data": True}}, {"name": "byte_out"}]
    response = server.post("/v2/models/every-type/infer", json_request(samples(2), outputs=asked))
    head = json.loads(response.body[: int(response.headers["inference-header-content-length"])])
    assert [(entry["name"], "data" in entry) for entry in head["outputs"]] == [("whole_out", False), ("byte_out", True)]


def test_model_of_a_fixed_batch_takes_that_batch_only(server: ServerProcess) -> None:
    assert server.post("/v2/models/fixed/infer", json_request(images(4))).status == 200
    response = server.post("/v2/models/fixed/infer", json_request(images(2)))
    assert (response.status, response.error) == (400, "input 'image' has shape [4, 1, 8, 8], not [2, 1, 8, 8]")


def test_request_with_more_rows_than_a_call_is_computed_in_parts(
    server: ServerProcess, bundles: dict[str, Path]
) -> None:
    inputs = images(21)
    body, headers = binary_request(inputs)
    found = binary_outputs(server.post("/v2/models/brightness/infer", body, **headers))["y"]
    np.testing.assert_allclose(found, expected(bundles["brightness"], inputs), rtol=1e-5)


def test_metadata_configuration_and_health(server: ServerProcess) -> None:
    assert server.get("/v2/health/live").status == server.get("/v2/health/ready").status == 200
    assert {"binary_tensor_data", "model_configuration", "statistics"} <= set(server.get("/v2").json()["extensions"])
    model = server.get("/v2/models/brightness").json()
    assert model["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, SIZE, SIZE]}]
    version = model["versions"][0]
    assert server.get(f"/v2/models/brightness/versions/{version}/ready").status == 200
    config = server.get("/v2/models/brightness/config").json()
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": [1, SIZE, SIZE]}]
    assert server.get("/v2/models/fixed/config").json()["max_batch_size"] == 0


def test_unknown_model_version_and_address_are_not_found(server: ServerProcess) -> None:
    for path in (
        "/v2/models/no",
        "/v2/models/brightness/versions/no",
        "/v2/models/no/ready",
        "/no",
        "/v2/models/%2e%2e",
    ):
        response = server.get(path)
        assert response.status == 404
        assert response.error
    assert server.post("/v2/models/no/infer", json_request(images(1))).status == 404
    assert server.get("/v2/models/brightness/infer").status == 405


def test_statistics_count_rows_and_calls(server: ServerProcess) -> None:
    def counts() -> tuple[int, int, int]:
        [entry] = server.get("/v2/models/brightness/stats").json()["model_stats"]
        return entry["inference_count"], entry["execution_count"], entry["inference_stats"]["success"]["count"]

    rows, calls, requests = counts()
    server.post("/v2/models/brightness/infer", json_request(images(5)))
    assert counts() == (rows + 5, calls + 1, requests + 1)


def test_request_id_is_kept_and_logged_without_the_payload(server: ServerProcess) -> None:
    response = server.post("/v2/models/brightness/infer", json_request(images(1)), x_request_id="mine-1")
    assert response.headers["x-request-id"] == "mine-1"
    while not (found := [e for e in server.log_entries() if e.get("request_id") == "mine-1"]):
        time.sleep(0.01)  # the log is written after the response
    [entry] = found
    assert (entry["status"], entry["model"], entry["rows"]) == (200, "brightness", 1)
    of_request = {"request_id", "method", "path", "status", "milliseconds", "model", "version", "rows"}
    assert set(entry) <= {"time", "level", "message"} | of_request
    assert server.get("/v2", x_request_id="no spaces or {}").headers["x-request-id"] != "no spaces or {}"


def predicted(server: ServerProcess, model: str, *files: bytes) -> list[dict[str, Any]]:
    """Return the predictions of image files in one form."""
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    form = b"".join(head + file + b"\r\n" for file in files) + b"--x--\r\n"
    response = server.post(f"/v2/models/{model}/predict", form, content_type="multipart/form-data; boundary=x")
    return list(response.json()["predictions"])


def test_several_images_in_a_form_are_as_many_rows_also_where_the_batch_is_fixed(
    server: ServerProcess, white_png: bytes, black_png: bytes
) -> None:
    for model in ("brightness", "fixed"):
        rows = server.metric("gauntlet_rows_total", model=model)
        found = predicted(server, model, white_png, black_png, white_png, black_png, white_png)
        assert [each["top"][0]["label"] for each in found] == ["bright", "dark", "bright", "dark", "bright"]
        assert server.post(f"/v2/models/{model}/infer", json_request(images(4))).status == 200
        assert server.metric("gauntlet_rows_total", model=model) == rows + 5 + 4


def test_detector_with_a_row_for_each_object_predicts_for_one_image_and_for_several(
    server: ServerProcess, bundles: dict[str, Path], tmp_path: Path
) -> None:
    pixels = [np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8) for seed in range(3)]
    pixels[1] //= 8  # other objects
    files = [tmp_path / f"{index}.png" for index in range(3)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    wanted = [
        p.model_dump(mode="json") for p in Predictor(Bundle.open(bundles["suppressed"]), threads=1).predict(files)
    ]
    assert len({len(prediction["boxes"]) for prediction in wanted}) > 1
    several = predicted(server, "suppressed", *(file.read_bytes() for file in files))
    alone = server.post("/v2/models/suppressed/predict", files[0].read_bytes()).json()["predictions"]
    assert [len(found["boxes"]) for found in several] == [len(prediction["boxes"]) for prediction in wanted]
    assert len(alone[0]["boxes"]) == len(wanted[0]["boxes"])


def test_what_is_no_image_is_refused_with_the_reason(server: ServerProcess, white_png: bytes) -> None:
    for body, reason in ((b"", "the file is empty"), (b"text", "not an image"), (white_png[:40], "damaged")):
        response = server.post("/v2/models/brightness/predict", body)
        assert response.status == 400
        assert reason in response.error
    response = server.post("/v2/models/every-type/predict", white_png)
    assert response.status == 400
    assert "takes tensors, not images" in response.error


def test_openapi_page_loads_nothing_from_elsewhere(server: ServerProcess) -> None:
    page = server.get("/docs").body.decode()
    assert "swagger-ui" in page
    assert "https://" not in page.split("<body>")[1]
    paths = server.get("/openapi.json").json()["paths"]
    document = server.get("/openapi.json").body.decode()
    named = set(re.findall(r'"#/components/schemas/(\w+)"', document))
    assert named <= set(json.loads(document)["components"]["schemas"])
    assert {"/v2/models/{name}/infer", "/v2/models/{name}/predict", "/v2/repository/index", "/metrics"} <= set(paths)


def test_service_takes_image_files_and_uint8_tensors(tmp_path: Path) -> None:
    _, bundle = pixel_bundles(tmp_path)
    expected = gauntlet.load(bundle)
    with serving(tmp_path, bundle, "--name", "graph") as server:
        for size in SIZES:
            reply = server.request("POST", "/v2/models/graph/predict", png(*size), content_type="image/png")
            assert reply.status == 200, reply.body
            assert expected(png(*size)).model_dump(mode="json")["top"] == reply.json()["predictions"][0]["top"]
        [spec] = server.request("GET", "/v2/models/graph").json()["inputs"]
    assert (spec["name"], spec["datatype"], spec["shape"]) == ("image", "UINT8", [-1, HEIGHT, WIDTH, 3])
