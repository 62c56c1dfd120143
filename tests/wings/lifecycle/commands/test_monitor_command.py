"""`gauntlet monitor` as a person meets it: verdicts, exit codes, the page, and what a second look adds."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from evidence import seal_with_evidence
from graded_bundles import run_report
from monitored_bundles import images, log_failures, log_requests, monitored_bundle, outputs_of
from served_bundles import brightness_bundle

from flows.cli.main import main
from gauntlet.bundle.bundle import Bundle
from gauntlet.request_log.log_format import log_files
from serving.request_log.writer import RequestLog, RequestLogConfig
from wings.lifecycle.commands.monitor_command import patiently
from wings.lifecycle.library.monitoring.monitor_result import MonitorResult
from wings.lifecycle.prefect_flows.alarm_event import alarm_id

BRIGHT = (0.7, 1.0)
AS_THEY_COME = ("--label-window-h", "0")
"""How labels are judged: earlier requests have none."""
NO_CYCLE = ("--season-h", "0")
"""How inputs and outputs are judged: all requests come within a moment."""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return monitored_bundle(tmp_path / "b")


def look(capsys: pytest.CaptureFixture[str], bundle: Path, log: Path, *words: str) -> tuple[int, MonitorResult]:
    capsys.readouterr()
    code = main(["monitor", str(bundle), "--log", str(log), "--json", *NO_CYCLE, *words])
    return code, MonitorResult.model_validate_json(capsys.readouterr().out)


def page(log: Path) -> str:
    [path] = log.glob("monitors/*/monitor.html")
    return path.read_text()


def test_requests_like_the_evaluation_raise_no_alarm(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 400), wrong=[False] * 400)
    code, found = look(capsys, bundle, log)
    assert (code, found.verdict, found.samples, found.moved) == (0, "no alarm", 400, ())
    expected = ["brightness", "contrast", "sharpness", "predicted class", "confidence"]
    assert [one.name for one in found.features] == expected
    assert (found.risk.labeled, found.risk.wrong, found.risk.reference) == (400, 0, 0.02)
    assert "No alarm" in page(log)


def test_change_without_labels_is_an_alarm_that_cannot_be_told(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 200))
    log_requests(log, bundle, images(2, 200, BRIGHT), name="bright")
    code, found = look(capsys, bundle, log)
    assert (code, found.verdict) == (1, "cannot tell")
    brightness = found.features[0]
    assert brightness.alarm_at is not None and 200 <= brightness.alarm_at < 280
    assert brightness.changed_at is not None and 180 <= brightness.changed_at <= 210
    assert brightness.recent is not None and brightness.recent[1] > 0.8 > brightness.reference[1]
    assert all(one.request_id.startswith("bright-") for one in found.moved)
    assert "POST /v2/models/NAME/feedback" in found.reason
    assert page(log).count("data:image/png;base64,") == len(found.moved)


def test_change_that_may_be_an_hour_of_a_cycle_is_no_alarm_on_the_first_day(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 200))
    log_requests(log, bundle, images(2, 200, BRIGHT), name="bright")
    code, found = look(capsys, bundle, log, "--season-h", "24")
    assert (code, found.verdict) == (0, "no alarm")
    assert "until 24 h are logged, only changes that no hour of the evaluation explains are found" in found.reason


def test_change_with_wrong_predictions_is_harmful(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 200), wrong=[False] * 200)
    log_requests(log, bundle, images(2, 200, BRIGHT), name="bright", wrong=[i % 2 == 0 for i in range(200)])
    code, found = look(capsys, bundle, log)
    assert (code, found.verdict) == (1, "harmful")
    assert found.risk is not None and found.risk.above > found.risk.bound
    assert "100 of 400 labeled predictions are wrong" in found.reason


def test_wrong_predictions_are_harmful_without_any_change_of_inputs(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 300), wrong=[i > 150 for i in range(300)])
    code, found = look(capsys, bundle, log)
    assert (code, found.verdict, found.moved) == (1, "harmful", ())


@pytest.mark.slow
def test_change_after_an_acquitted_one_is_an_alarm_again(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 200))
    log_requests(log, bundle, images(2, 400, BRIGHT), name="bright", wrong=[False] * 400)
    log_requests(log, bundle, images(3, 400, BRIGHT), name="still bright")
    assert look(capsys, bundle, log, *AS_THEY_COME)[1].verdict == "harmless"
    log_requests(log, bundle, images(4, 300, (0.0, 0.2)), name="dark")
    code, found = look(capsys, bundle, log, *AS_THEY_COME)
    assert (code, found.verdict) == (1, "cannot tell")
    assert 950 < int(found.reason.split("sample ")[1].split(":")[0]) < 1050
    log_requests(log, bundle, images(5, 400, (0.0, 0.2)), name="dark, too", wrong=[False] * 400)
    assert look(capsys, bundle, log, *AS_THEY_COME)[1].verdict == "harmless"


def test_labels_under_an_id_that_several_requests_have_are_ignored_and_counted(bundle: Path, log: Path, capsys) -> None:
    outputs = outputs_of(bundle, images(1, 40))["y"].argmax(axis=1)
    for seed in (1, 3):
        log_requests(log, bundle, images(seed, 40), name="trace")
    log_requests(log, bundle, images(2, 10), wrong=[False] * 10)
    writer = RequestLog(RequestLogConfig(folder=log))
    for number, label in enumerate(outputs.tolist()):
        for right in (label, (label + 1) % 3):
            writer.add_feedback(f"trace-{number}", (right,))
    writer.close()
    _, found = look(capsys, bundle, log, *AS_THEY_COME)
    assert (found.verdict, found.risk.labeled, found.ignored_labels) == ("no alarm", 10, 80)


def test_small_change_is_harmless_by_the_estimated_accuracy(tmp_path: Path, log: Path, capsys) -> None:
    bundle = monitored_bundle(tmp_path / "b", samples=2000)
    log_requests(log, bundle, images(1, 1500, (0.1, 1.0)))
    code, found = look(capsys, bundle, log)
    assert (code, found.verdict) == (0, "harmless")
    assert found.estimate is not None and found.estimate.accuracy is not None
    assert abs(found.estimate.accuracy - 0.98) < 0.01
    assert "without labels, the estimated risk is" in found.reason
    assert "Accuracy without labels" in page(log)


def test_lasting_failures_are_harmful(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 50))
    log_failures(log, Bundle.open(bundle).digest, windows=40)
    code, found = look(capsys, bundle, log)
    assert (code, found.verdict) == (1, "harmful")
    assert found.reason == "failed requests are proven above 1.0%: 40 of 90"
    assert [(one.name, one.troubled) for one in found.service] == [("failed requests", 40), ("outputs not finite", 0)]
    assert look(capsys, bundle, log, "--max-failed-share", "0.9")[1].verdict == "no alarm"


def test_failures_beside_a_change_that_labels_acquit_are_no_reason_to_retrain(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 100), wrong=[False] * 100)
    log_requests(log, bundle, images(2, 400, BRIGHT), name="bright", wrong=[False] * 400)
    log_failures(log, Bundle.open(bundle).digest, windows=40)
    found = look(capsys, bundle, log, *AS_THEY_COME)[1]
    assert any(feature.alarm_at is not None for feature in found.features)
    assert (found.verdict, alarm_id(found)) == ("harmful", None)


def test_latency_is_held_against_the_objective_of_the_run(bundle: Path, log: Path, capsys) -> None:
    objective = {"serve": {"objective": {"p99_ms": 0.5, "rate": 10}}}
    (bundle / "report.json").write_text(run_report(config=objective).model_dump_json())
    seal_with_evidence(bundle)
    log_requests(log, bundle, images(1, 30))  # of 1 ms each
    found = look(capsys, bundle, log)[1]
    assert (found.limits.p99_ms, found.service[-1].name, found.service[-1].troubled) == (0.5, "late requests", 30)
    assert look(capsys, bundle, log, "--p99-ms", "2")[1].service[-1].troubled == 0


def test_looking_often_gives_the_result_of_one_look(bundle: Path, tmp_path: Path, capsys) -> None:
    often, once, late = tmp_path / "often", tmp_path / "once", [False] * 150
    for number, level in enumerate([(0.0, 1.0), BRIGHT, BRIGHT]):
        for log in (often, once):
            log_requests(log, bundle, images(number, 150, level), name=str(number), wrong=late)
        _, last = look(capsys, bundle, often)
    _, whole = look(capsys, bundle, once)
    assert (last.features, last.samples) == (whole.features, 450)
    assert (last.risk.labeled, last.risk.evidence) == (whole.risk.labeled, whole.risk.evidence)


def test_what_was_seen_counts_after_the_log_has_forgotten_it(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 200, BRIGHT))
    look(capsys, bundle, log)
    for _, path in log_files(log):
        path.unlink()
    log_requests(log, bundle, images(2, 10), name="later")
    code, found = look(capsys, bundle, log)
    assert (code, found.samples) == (1, 210)


def test_restart_begins_with_what_is_logged_from_now_on(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 200, BRIGHT))
    assert look(capsys, bundle, log)[0] == 1
    assert look(capsys, bundle, log, "--restart")[1].samples == 0
    log_requests(log, bundle, images(2, 50), name="later", wrong=[False] * 50)
    code, found = look(capsys, bundle, log)
    assert (code, found.samples, found.risk and found.risk.labeled) == (0, 50, 50)


def test_requests_to_another_version_are_left_out(bundle: Path, log: Path, tmp_path: Path, capsys) -> None:
    other = brightness_bundle(tmp_path / "other", bias=1)
    log_requests(log, other, images(1, 100, BRIGHT), wrong=[True] * 100)
    log_requests(log, bundle, images(2, 30), name="own")
    code, found = look(capsys, bundle, log)
    assert (code, found.samples, found.ignored_labels) == (0, 30, 100)


def test_without_kept_inputs_only_outputs_are_judged(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 200, BRIGHT), keep="none")
    code, found = look(capsys, bundle, log)
    assert code == 1
    assert [one.samples for one in found.features] == [0, 0, 0, 200, 200]
    assert "data:image/png" not in page(log)
    assert "not in the log" in page(log)


def test_values_that_are_no_numbers_are_a_change(bundle: Path, log: Path, capsys) -> None:
    broken = images(1, 60)
    broken["image"][:] = np.nan
    log_requests(log, bundle, images(2, 100))
    log_requests(log, bundle, broken, name="nan")
    code, found = look(capsys, bundle, log)
    assert (code, found.verdict) == (1, "cannot tell")
    assert json.loads(found.model_dump_json())["moved"][0]["values"]["brightness"] == "-Infinity"


def test_without_labels_in_the_evaluation_there_is_no_risk(tmp_path: Path, log: Path, capsys) -> None:
    bundle = monitored_bundle(tmp_path / "unlabeled", labeled=False)
    log_requests(log, bundle, images(1, 200, BRIGHT), wrong=[True] * 200)
    code, found = look(capsys, bundle, log)
    assert (code, found.verdict, found.risk) == (1, "cannot tell", None)
    assert "no labels that tell" in found.reason


def test_one_request_without_statistics_blinds_no_feature(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 1), keep="none")
    log_requests(log, bundle, images(2, 200, BRIGHT), name="bright")
    code, found = look(capsys, bundle, log)
    assert (code, [one.samples for one in found.features]) == (1, [200, 200, 200, 201, 201])
    assert found.features[0].alarm_at is not None
    assert main(["monitor", str(bundle), "--log", str(log), *NO_CYCLE]) == 1
    assert "not in the log of all samples: brightness (200), contrast (200)" in capsys.readouterr().out


def test_labels_that_wait_for_earlier_ones_are_counted_and_said(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 70))
    log_requests(log, bundle, images(2, 30), name="labeled", wrong=[True] * 30)
    code, found = look(capsys, bundle, log)
    assert (code, found.risk.labeled, found.risk.waiting, found.risk.unlabeled) == (0, 0, 30, 0)
    assert "30 labels are not judged yet" in page(log)
    assert main(["monitor", str(bundle), "--log", str(log)]) == 0
    assert "30 labels not judged yet: earlier requests without one may get theirs for 48 h" in capsys.readouterr().out
    code, found = look(capsys, bundle, log, *AS_THEY_COME)
    assert (code, found.risk.labeled, found.risk.unlabeled, found.verdict) == (1, 30, 70, "harmful")


def test_text_names_the_verdict_and_the_page(bundle: Path, log: Path, tmp_path: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 200, BRIGHT))
    assert main(["monitor", str(bundle), "--log", str(log), *NO_CYCLE, "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out
    assert "Cannot tell: brightness" in printed
    assert "200 samples, 0 labels" in printed
    assert str(tmp_path / "out" / "monitor.html") in printed
    assert "brightness: median" in printed
    assert "have no label" not in (tmp_path / "out" / "monitor.html").read_text()  # it counted none of the 200


def test_wrong_arguments_are_refused_in_one_line(bundle: Path, log: Path, tmp_path: Path, capsys) -> None:
    def refused(*words: str) -> str:
        assert main(["monitor", *words]) == 2
        return capsys.readouterr().err

    assert f"--log {log}: no request log in it. Fix:" in refused(str(bundle), "--log", str(log))
    log_requests(log, bundle, images(1, 3))
    assert "--false-alarms 0.9: Input should be less than 0.5" in refused(
        str(bundle), "--log", str(log), "--false-alarms", "0.9"
    )
    plain = brightness_bundle(tmp_path / "plain")
    assert "the bundle has no monitoring.npz to compare with. Fix:" in refused(str(plain), "--log", str(log))
    (tmp_path / "file").write_text("")
    assert "Fix: name another folder with --out" in refused(
        str(bundle), "--log", str(log), "--out", str(tmp_path / "file" / "x")
    )
    assert "no such file or folder" in refused(str(tmp_path / "none.zip"), "--log", str(log))


def test_damaged_history_is_named(bundle: Path, log: Path, capsys) -> None:
    log_requests(log, bundle, images(1, 3))
    look(capsys, bundle, log)
    [history] = log.glob("monitors/*/history.npz")
    history.write_bytes(b"broken")
    assert main(["monitor", str(bundle), "--log", str(log)]) == 3
    assert "history.npz: it cannot be read" in capsys.readouterr().err


def test_another_version_that_is_looked_at_from_the_same_folder_has_a_history_of_its_own(
    bundle: Path, log: Path, tmp_path: Path, capsys
) -> None:
    out = ("--out", str(tmp_path / "out"), *AS_THEY_COME)
    log_requests(log, bundle, images(1, 200), wrong=[True] * 200)
    assert look(capsys, bundle, log, *out)[1].verdict == "harmful"
    code, found = look(capsys, monitored_bundle(tmp_path / "next", bias=0.01), log, *out)
    assert (code, found.verdict, found.samples) == (0, "no alarm", 0)


def test_watch_goes_on_when_a_full_disk_has_space_again(capsys: pytest.CaptureFixture[str]) -> None:
    errors = [OSError(errno.ENOSPC, "No space left on device")]

    def look() -> str:
        if errors:
            raise errors.pop()
        return "looked"

    assert patiently(look, 0.01) == "looked"
    assert "No space left on device. Looking again in 0.01 s" in capsys.readouterr().err
