"""The request log has failures of the model and of the service, and none that are the client's."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_text
import pytest
from served_bundles import write_bundle
from server_process import ServerProcess, json_request, serving

from gauntlet.bundle.bundle import Bundle
from gauntlet.core.signature import Signature, TensorSpec
from wings.lifecycle.library.log_reader import RequestLogReader

INFER = "/v2/models/table/infer"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of five rows: the runtime rejects an index outside of it."""
    model = onnx_text.model(
        "table (int64[n] index) => (float[n, 3] y) <float[5, 3] rows> { y = Gather<axis=0>(rows, index) }",
        {"rows": np.eye(5, 3, dtype=np.float32)},
    )
    signature = Signature(
        inputs=(TensorSpec(name="index", dtype="int64", shape=("n",)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=("n", 3)),),
        primary_output="y",
    )
    signature.write(model)
    folder = tmp_path_factory.mktemp("bundle") / "b"
    return write_bundle(folder, model.SerializeToString(), signature, {"index": np.arange(5)}, name="table")


@pytest.fixture
def server(bundle: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path, bundle, "--request-log", tmp_path / "log", "--log-inputs", "all") as running:
        yield running


def test_failures_of_the_model_are_logged_in_their_place(server: ServerProcess, bundle: Path, tmp_path: Path) -> None:
    statuses = [
        server.post(INFER, json_request({"index": np.array([index])}), x_request_id=f"r-{index}").status
        for index in (1, 99, 2)
    ]
    statuses.append(server.post(INFER, {"inputs": []}).status)  # the client's fault
    assert statuses == [200, 422, 200, 400]
    assert server.stop() == 0
    reader, version = RequestLogReader(tmp_path / "log"), Bundle.open(bundle).digest[:12]
    outcomes = list(reader.outcomes(version))
    assert [one.failure for one in outcomes] == [None, "model", None]
    assert all(one.milliseconds > 0 for one in outcomes)
    assert [one.request_id for one in reader.requests(version)] == ["r-1", "r-2"]
    assert list(reader.outcomes(version, outcomes[1].place)) == outcomes[2:]
