"""`gauntlet predict` of a video as a person meets it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
from harness import json_lines
from videos import OPENING, camera, cut, digits, gray, write_video

from flows.cli.main import main
from wings.prediction.library.video_files import open_video


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """A video of the digits 0 to 4."""
    return write_video(tmp_path / "digits.mkv", digits(5), "FFV1")


def heed_ctrl_c() -> None:
    """Undo what a shell does to the processes that it starts in the background, and they to theirs."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_every_frame_is_a_line_and_the_last_line_sums_up(
    packed: Path, video: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(packed), str(video), "--json"]) == 0
    *frames, last = json_lines(capsys.readouterr().out)
    assert [frame["frame"] for frame in frames] == [0, 1, 2, 3, 4]
    assert [frame["time_s"] for frame in frames] == [0, 0.1, 0.2, 0.3, 0.4]
    assert [frame["prediction"]["top"][0]["label"] for frame in frames] == ["0", "1", "2", "3", "4"]
    summary = last["summary"]
    assert (summary["frames"], summary["dropped"]) == (5, 0)
    assert 0 < summary["latency_p50_ms"] <= summary["latency_p95_ms"]


def test_people_see_lines_and_a_sentence(packed: Path, video: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(packed), str(video), "--frames", "2"]) == 0
    first, second, summary, stages = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ["0", "0.000", "s", "0:"]
    assert second.split()[:4] == ["1", "0.100", "s", "1:"]
    assert summary.startswith("2 frames in ")
    assert "latency p50" in summary
    assert summary.endswith("0 dropped")
    assert re.fullmatch(
        r"p95 of each stage in ms: decode [\d.]+, preprocess [\d.]+, infer [\d.]+, postprocess [\d.]+", stages
    )


def test_frames_are_drawn_as_images_or_as_a_video(
    packed: Path, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(packed), str(video), "--draw", str(tmp_path / "drawn"), "--json"]) == 0
    assert [*json_lines(capsys.readouterr().out)[-1]["summary"]["stages_p95_ms"]][-1] == "draw"
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == [f"{i:06}.png" for i in range(5)]
    assert main(["predict", str(packed), str(video), "--draw", str(tmp_path / "new" / "drawn.mp4")]) == 0
    found = list(open_video(str(tmp_path / "new" / "drawn.mp4"), 3, 60).frames())
    assert len(found) == 5
    still = cv2.imread(str(tmp_path / "drawn" / "000003.png"))
    height, width = still.shape[:2]
    assert found[3].pixels.shape == (height + height % 2, width + width % 2, 3)
    assert abs(float(found[3].pixels.mean()) - float(still.mean())) < 4


def test_truncated_video_keeps_what_was_predicted(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = cut(write_video(tmp_path / "a.mkv", [gray(8 * i) for i in range(30)]))
    assert main(["predict", str(packed), str(broken), "--json", "--draw", str(tmp_path / "out.mp4")]) == 2
    out, err = capsys.readouterr()
    *frames, last = json_lines(out)
    assert last["summary"]["frames"] == len(frames) > 5
    assert err.count("\n") == 1
    assert f"cut-a.mkv: ends after {len(frames)} of about 30 frames" in err
    assert len(list(open_video(str(tmp_path / "out.mp4"), 3, 60).frames())) == len(frames)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.mp4"], "none.mp4: no such file"),
        (["{video}", "a.png"], "a video is predicted alone"),
        (["{video}", "--out", "a.npz"], "for a video use --json"),
        (["{video}", "--draw", "{video}"], "it is the video itself"),
        (["-", "--frames", "3"], "--frames: it is for a video"),
        (["-", "--timeout", "3"], "--timeout: it is for a video"),
        (["camera:zero"], "expected camera:N"),
    ],
)
def test_invalid_arguments_for_a_video_are_refused_in_one_line(
    packed: Path, video: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["predict", str(packed), *(argument.format(video=video) for argument in arguments)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("gauntlet: ")
    assert words in err
    assert err.count("\n") == 1


def test_unreadable_video_is_one_line_without_the_noise_of_a_decoder(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    command = [sys.executable, "-m", "flows.cli.main", "predict", str(packed), str(tmp_path / "empty.mp4")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    fix = "Fix: copy or convert it again; FFmpeg cannot read it"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gauntlet: {tmp_path / 'empty.mp4'}: not a readable video. {fix}\n"


@pytest.mark.slow
def test_interrupted_camera_ends_with_the_summary(packed: Path, tmp_path: Path) -> None:
    with camera(digits(OPENING + 4)) as sender:
        sender.send(OPENING)
        command = [sys.executable, "-m", "flows.cli.main", "predict", str(packed), sender.url, "--json"]
        command += ["--draw", str(tmp_path / "out.mp4"), "--timeout", "120"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
        ) as process:
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    *frames, last = json_lines(first + out)
    assert len(frames) <= last["summary"]["frames"] <= len(frames) + 1
    assert "Traceback" not in err
    assert len(list(open_video(str(tmp_path / "out.mp4"), 3, 60).frames())) >= 1
