"""What the request log keeps, and that neither a kill, nor a slow or full disk, harms it or a request."""

import asyncio
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from harness import command
from monitored_bundles import images, log_requests, monitored_bundle, outputs_of
from served_bundles import SIZE, brightness_bundle
from server_process import ServerProcess, json_request, serving, wait_until

from flows.cli.main import main
from gauntlet.bundle.bundle import Bundle
from gauntlet.core.signature import Signature
from gauntlet.request_log.input_statistics import input_statistics
from gauntlet.request_log.log_format import is_in_share, log_files
from serving.errors import InvalidRequest
from serving.gate import NOTES
from serving.observations import Metrics
from serving.protocol import Feedback, FeedbackRequest
from serving.request_log import writer
from serving.request_log.log_file import LogFile
from serving.request_log.writer import RequestLog, RequestLogConfig
from serving.routes import feedback
from serving.routes.feedback import require_known
from wings.lifecycle.library.log_reader import LoggedRequest, RequestLogReader

pytestmark = pytest.mark.slow
INFER, FEEDBACK = "/v2/models/brightness/infer", "/v2/models/brightness/feedback"
THREE = images(1, 3)
VERSION = "a" * 12


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return brightness_bundle(tmp_path_factory.mktemp("bundle") / "b", latencies=[(1, 1.0), (4, 2.0)])


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("log")
    with serving(folder, bundle, "--request-log", folder / "log", "--log-inputs", "all") as running:
        yield running


def logged(server: ServerProcess, bundle: Path) -> dict[str, LoggedRequest]:
    """Return what the log of a running server has, once it has all that was asked so far."""
    wanted = server.metric("gauntlet_requests_success_total")
    reader = RequestLogReader(server.logs.parent / "log")
    return wait_until(
        lambda: {r.request_id: r for r in reader.requests(version_of(bundle))}, lambda r: len(r) >= wanted
    )


def version_of(bundle: Path) -> str:
    return Bundle.open(bundle).digest[:12]


def written(metrics: Metrics, outcome: str) -> float:
    return float(metrics.registry.get_sample_value("gauntlet_request_log_entries_total", {"outcome": outcome}) or 0)


def test_log_has_inputs_outputs_latency_and_id_of_each_request(server: ServerProcess, bundle: Path) -> None:
    before = time.time()
    assert server.post(INFER, json_request(THREE), x_request_id="mine").status == 200
    given = server.post(INFER, json_request(THREE)).headers["x-request-id"]
    found = logged(server, bundle)
    one = found["mine"]
    assert given in found
    assert np.array_equal(one.inputs["image"], THREE["image"])  # type: ignore[index]
    assert np.allclose(one.outputs["y"], outputs_of(bundle, THREE)["y"], atol=1e-5)
    assert before <= one.time <= time.time() and 0 < one.milliseconds < 60_000


def test_image_is_logged_as_the_model_took_it(server: ServerProcess, bundle: Path, white_png: bytes) -> None:
    response = server.post("/v2/models/brightness/predict", white_png, content_type="image/png", x_request_id="white")
    assert response.json()["predictions"][0]["top"][0]["label"] == "bright"
    one = logged(server, bundle)["white"]
    assert one.outputs["y"].argmax() == 2
    assert np.array_equal(one.inputs["image"], np.ones((1, 1, SIZE, SIZE)))  # type: ignore[index]


def test_labels_are_joined_by_the_request_id(server: ServerProcess) -> None:
    entries = [{"request_id": "mine", "labels": ["dark", 1, "bright"]}, {"request_id": "unknown", "labels": [0]}]
    response = server.post(FEEDBACK, {"feedback": entries})
    assert (response.status, response.json()) == (202, {"accepted": 2, "not_sampled": 0})
    reader = RequestLogReader(server.logs.parent / "log")
    found = wait_until(lambda: list(reader.feedback()), lambda one: len(one) >= 2)
    assert [(one.request_id, one.labels) for one in found[:2]] == [("mine", ("dark", 1, "bright")), ("unknown", (0,))]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[]", "the request is not one of the protocol"),
        ('{"feedback": [{"request_id": "x"}]}', "labels"),
        (
            '{"feedback": [{"request_id": "x", "labels": ["purple"]}]}',
            "'purple' is no class of the model; allowed names",
        ),
        ('{"feedback": [{"request_id": "x", "labels": [3]}]}', "indices 0 to 2"),
        ('{"feedback": [{"request_id": "x", "labels": [-1]}]}', "'-1' is no class"),
        ('{"feedback": [{"request_id": "x", "labels": [1.5]}]}', "feedback.0.labels.0"),
        (f'{{"feedback": [{{"request_id": "x", "labels": [{10**30}]}}]}}', "less than or equal to 2147483648"),
    ],
)
def test_wrong_feedback_is_refused(server: ServerProcess, body: str, words: str) -> None:
    response = server.post(FEEDBACK, body)
    assert response.status == 400
    assert words in response.error


def test_classes_of_one_name_are_told_apart_by_their_indices(signature: Signature) -> None:
    cranes = signature.replace(labels=("crane", "dog", "crane"))
    require_known([0, "dog", 2], cranes)
    with pytest.raises(InvalidRequest, match="'crane' is the name of 2 classes"):
        require_known(["crane"], cranes)


def test_classes_are_counted_once_for_many_labels(signature: Signature, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has 4096 entries, a model 20,000 classes, and the event loop reads both."""
    entries = [Feedback(request_id=str(number), labels=["dark"]) for number in range(50)]
    model, counts = type("Model", (), {"signature": signature})(), list[tuple[str, ...]]()

    async def received(*_: object) -> FeedbackRequest:
        return FeedbackRequest(feedback=entries)

    monkeypatch.setattr(feedback, "received_message", received)
    monkeypatch.setattr(feedback, "Counter", lambda labels: counts.append(labels) or Counter(labels))
    repository = SimpleNamespace(limits=None, model=lambda *_, **__: model)
    log = SimpleNamespace(samples=lambda _: True, add_feedback=lambda *_: True)
    state = SimpleNamespace(repository=repository, request_log=log)
    request = SimpleNamespace(app=SimpleNamespace(state=state), scope={NOTES: {}})
    answer = asyncio.run(feedback.feedback("m", request))  # type: ignore[arg-type]
    assert (answer.accepted, len(counts)) == (50, 2)


def test_feedback_is_small(server: ServerProcess) -> None:
    response = server.post(FEEDBACK, {"feedback": [{"request_id": "x", "labels": 500_000 * [0]}]})
    assert (response.status, response.error) == (413, "the body is larger than 1 MB")


def test_without_the_option_nothing_is_logged(bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, bundle) as server:
        assert server.post(INFER, json_request(THREE)).status == 200
        response = server.post(FEEDBACK, {"feedback": [{"request_id": "x", "labels": [0]}]})
        assert response.status == 409
        assert "--request-log FOLDER" in response.error
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_killed_server_leaves_a_readable_log_that_the_next_one_continues(bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, bundle, "--request-log", tmp_path / "log") as first:
        for number in range(20):
            first.post(INFER, json_request(THREE), x_request_id=f"first-{number}")
        assert len(logged(first, bundle)) == 20
        first.stop(signal.SIGKILL)
    with serving(tmp_path, bundle, "--request-log", tmp_path / "log") as second:
        second.post(INFER, json_request(THREE), x_request_id="second")
        reader = RequestLogReader(tmp_path / "log")
        found = wait_until(lambda: list(reader.requests(version_of(bundle))), lambda rows: len(rows) == 21)
        assert (found[0].request_id, found[-1].request_id) == ("first-0", "second")
        refused = command(tmp_path, "serve", str(bundle), "--port", "0", "--request-log", "log")
        assert refused.returncode == 2
        assert "another server writes into it. Fix:" in refused.stderr
        assert second.stop() == 0


def test_stopped_server_has_written_everything_for_its_user_alone(bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, bundle, "--request-log", tmp_path / "log") as server:
        for _ in range(5):
            server.post(INFER, json_request(THREE))
        assert server.stop() == 0
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o700
    found = list(RequestLogReader(tmp_path / "log").requests(version_of(bundle)))
    signature = Bundle.open(bundle).contract.signature
    assert len(found) == 5
    assert all(one.inputs is None for one in found)
    assert np.allclose(found[0].statistics, input_statistics(THREE, signature))  # type: ignore[arg-type]


def test_inputs_leave_no_trace_where_they_are_not_to_be_kept(tmp_path: Path) -> None:
    folder = monitored_bundle(tmp_path / "b")
    log_requests(tmp_path / "log", folder, images(1, 3), keep="none")
    found = list(RequestLogReader(tmp_path / "log").requests(version_of(folder)))
    assert [(one.inputs, one.statistics) for one in found] == [(None, None)] * 3


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--log-share", "0.5"), ": there is no request log. Fix: name its folder with --request-log FOLDER"),
        (("--request-log", "x", "--log-share", "2"), " 2.0: Input should be less than or equal to 1"),
        (("--request-log", "x", "--log-max-mb", "1"), " 1.0: Input should be greater than or equal to 16"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    bundle: Path, words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(bundle), "--port", "0", *words]) == 2
    assert capsys.readouterr().err == f"gauntlet: {words[-2]}{error}\n"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are written at once."""
    monkeypatch.setattr(writer, "FLUSH_S", 0.0)


@pytest.fixture
def signature(bundle: Path) -> Signature:
    return Bundle.open(bundle).contract.signature


def add(log: RequestLog, name: str, signature: Signature, values: int = 3) -> None:
    log.add(name, VERSION, signature, THREE, {"y": np.zeros((3, values), np.float32)}, 0.001)


def test_share_is_the_same_requests_on_every_server(tmp_path: Path) -> None:
    logs = [RequestLog(RequestLogConfig(folder=tmp_path / name, share=0.25)) for name in "ab"]
    names = [f"request-{number}" for number in range(4000)]
    first, second = ([log.samples(name) for name in names] for log in logs)
    assert first == second
    assert 900 < sum(first) < 1100
    of_canary = [logged for logged, name in zip(first, names, strict=True) if is_in_share(name, 0.25, "canary")]
    assert 0.2 < sum(of_canary) / len(of_canary) < 0.3
    for log in logs:
        log.close()


def test_log_keeps_within_its_size_and_loses_the_oldest(tmp_path: Path, signature: Signature, soon: None) -> None:
    metrics, folder = Metrics(), tmp_path / "log"
    log = RequestLog(RequestLogConfig(folder=folder, max_mb=16, inputs="none"), metrics.count_logged)
    largest = 0
    for number in range(40):  # of 0.6 MB each
        add(log, f"r-{number}", signature, 50_000)
        wait_until(lambda: written(metrics, "written"), lambda count, number=number: count == number + 1)
        largest = max(largest, sum(path.stat().st_size for path in folder.iterdir()))
    log.close()
    found = [one.request_id for one in RequestLogReader(folder).requests(VERSION)]
    assert largest <= 16e6
    assert found == [f"r-{number}" for number in range(40 - len(found), 40)]
    assert 10 < len(found) < 35
    assert written(metrics, "lost") == 0


def test_slow_disk_costs_entries_and_never_a_request(
    tmp_path: Path, signature: Signature, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, released, write = threading.Event(), threading.Event(), LogFile.write

    def stuck(self: LogFile, requests: object, feedback: object) -> None:
        writing.set()
        released.wait()
        write(self, requests, feedback)  # type: ignore[arg-type]

    monkeypatch.setattr(LogFile, "write", stuck)
    metrics = Metrics()
    log = RequestLog(RequestLogConfig(folder=tmp_path, max_mb=16, inputs="none"), metrics.count_logged)
    add(log, "first", signature)
    writing.wait()
    for number in range(3000):  # returns although nothing is written
        add(log, f"r-{number}", signature)
    assert written(metrics, "lost") > 1000
    assert not log.add_feedback("first", (0, 1, 2))
    released.set()
    log.close()
    assert written(metrics, "lost") + written(metrics, "written") == 3002
    assert len(list(RequestLogReader(tmp_path).requests(VERSION))) == written(metrics, "written") > 500


def test_labels_have_the_time_at_which_they_came_and_those_of_an_older_server_none(tmp_path: Path) -> None:
    log = RequestLog(RequestLogConfig(folder=tmp_path))
    assert log.add_feedback("new", (1,))
    log.close()
    with closing(sqlite3.connect(tmp_path / "requests-1.sqlite")) as older, older:
        older.execute("CREATE TABLE feedback (id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, labels TEXT NOT NULL)")
        older.execute("INSERT INTO feedback (request_id, labels) VALUES ('old', '[2]')")
    found = {entry.request_id: entry.time for entry in RequestLogReader(tmp_path).feedback()}
    assert found["old"] == 0
    assert abs(found["new"] - time.time()) < 600


def test_full_disk_costs_entries_until_there_is_room(
    tmp_path: Path, signature: Signature, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite's own limit of pages raises the error that a full disk does."""
    full, write = [True], LogFile.write

    def limited(self: LogFile, requests: object, feedback: object) -> None:
        self._database.execute(f"PRAGMA max_page_count = {4 if full[0] else 100_000}")
        write(self, requests, feedback)  # type: ignore[arg-type]

    monkeypatch.setattr(LogFile, "write", limited)
    metrics = Metrics()
    log = RequestLog(RequestLogConfig(folder=tmp_path, max_mb=16, inputs="none"), metrics.count_logged)
    add(log, "lost", signature, 50_000)
    assert wait_until(lambda: written(metrics, "lost"), lambda count: count >= 1) == 1
    full[0] = False
    add(log, "kept", signature, 50_000)
    assert wait_until(lambda: written(metrics, "written"), lambda count: count >= 1) == 1
    log.close()
    assert [one.request_id for one in RequestLogReader(tmp_path).requests(VERSION)] == ["kept"]
    [record] = [record for record in caplog.records if "the request log loses entries" in record.message]
    assert "full" in record.reason  # type: ignore[attr-defined]


def test_entry_larger_than_the_queue_is_left_out(tmp_path: Path, signature: Signature) -> None:
    metrics = Metrics()
    log = RequestLog(RequestLogConfig(folder=tmp_path, max_mb=16, inputs="none"), metrics.count_logged)
    add(log, "large", signature, 500_000)
    log.close()
    assert written(metrics, "lost") == 1
    assert not log_files(tmp_path)
