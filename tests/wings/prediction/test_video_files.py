"""Frames come as they are, with their times, and are predicted as image files are; what is broken is one error."""

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from bundles import png
from static_files import served
from videos import FPS, OPENING, camera, cut, digits, gray, until, write_video

import gauntlet
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.errors import ConfigError
from gauntlet.images.decoding import decode_image
from wings.prediction.library.video_files import Frame, LiveVideo, VideoWriter, open_video
from wings.prediction.library.video_prediction import VideoPredictions, predict_frames

TIMEOUT_S = 60.0


def frames_of(path: Path, channels: int = 3) -> list[Frame]:
    return list(open_video(str(path), channels, TIMEOUT_S).frames())


def live(url: str, timeout_s: float = TIMEOUT_S) -> LiveVideo:
    found = open_video(url, 3, timeout_s)
    assert isinstance(found, LiveVideo)
    return found


@pytest.mark.parametrize(("suffix", "code"), [("mp4", "mp4v"), ("avi", "MJPG"), ("mkv", "MJPG"), ("webm", "VP80")])
def test_every_frame_of_a_file_comes_with_its_time(tmp_path: Path, suffix: str, code: str) -> None:
    path = write_video(tmp_path / f"a.{suffix}", [gray(40 * i) for i in range(6)], code)
    found = frames_of(path)
    assert [frame.index for frame in found] == [0, 1, 2, 3, 4, 5]
    assert [frame.seconds for frame in found] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5], abs=0.01)
    assert [frame.pixels.mean() for frame in found] == pytest.approx([0, 40, 80, 120, 160, 200], abs=4.5)
    assert found[0].pixels.shape == (48, 64, 3)


def test_frame_has_the_colors_and_the_gray_of_an_image_file(tmp_path: Path) -> None:
    image = gray(0)
    image[:, :32], image[:, 32:] = (250, 10, 10), (10, 10, 250)
    path = write_video(tmp_path / "a.avi", [image])
    [color], [single] = frames_of(path), frames_of(path, channels=1)
    assert np.abs(color.pixels[24, 8].astype(int) - (250, 10, 10)).max() < 12
    png = cv2.imencode(".png", color.pixels[:, :, ::-1])[1].tobytes()
    assert np.array_equal(single.pixels, decode_image(png, 1))


@pytest.mark.parametrize("suffix", ["avi", "mkv"])
def test_truncated_file_gives_what_it_has_and_then_an_error(tmp_path: Path, suffix: str) -> None:
    whole = write_video(tmp_path / f"a.{suffix}", [gray(8 * i) for i in range(30)])
    source, found = open_video(str(cut(whole)), 3, TIMEOUT_S), list[int]()
    with pytest.raises(ConfigError, match=r"ends after \d+ of about 30 frames .*truncated or damaged") as refused:
        found.extend(frame.index for frame in source.frames())
    assert 0 < len(found) < 30  # `extend` keeps what came before the error
    assert f"after {len(found)} of" in str(refused.value)
    assert len(frames_of(whole)) == 30


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "a.mp4", [gray(i) for i in range(30)], "mp4v")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "junk.mkv").write_bytes(b"junk" * 1000)
    for path in (cut(whole), tmp_path / "empty.mp4", tmp_path / "junk.mkv", tmp_path):
        with pytest.raises(ConfigError, match=r"not a readable video\. Fix: copy or convert"):
            open_video(str(path), 3, TIMEOUT_S)
    with pytest.raises(ConfigError, match=r"none\.mp4: no such file"):
        open_video(str(tmp_path / "none.mp4"), 3, TIMEOUT_S)


def test_file_without_a_frame_is_refused(tmp_path: Path) -> None:
    header = cut(write_video(tmp_path / "a.mkv", [gray(9)] * 30), 0.2)
    content = header.read_bytes()
    header.write_bytes(content[: content.index(b"\xff\xd8\xff")])  # up to the first JPEG image
    with pytest.raises(ConfigError, match="no frame can be read"):
        frames_of(header)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("camera:x", "expected camera:N"),
        ("camera:", "expected camera:N"),
        ("camera:63", "not a readable video. Fix: connect it"),
        (
            "http://anna:hidden@127.0.0.1:1/",
            r"http://anna:\*\*\*@127.0.0.1:1/: not a readable video. Fix: check the",
        ),
    ],
)
def test_source_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_video(name, 3, TIMEOUT_S)


def test_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigError, match=r"OpenCV, which is missing. Fix: make video"):
        open_video("a.mp4", 3, TIMEOUT_S)


def test_newest_frame_of_a_live_source_is_taken_and_the_others_are_counted() -> None:
    images = [gray(20 * i) for i in range(OPENING + 5)]
    with camera(images) as sender:
        sender.send(OPENING)
        source = live(sender.url)
        frames = source.frames()
        first = next(frames)
        sender.send(3)
        until(lambda: source.received == OPENING + 3)
        newest = next(frames)
        assert newest.index == OPENING + 2
        assert newest.seconds > first.seconds >= 0
        assert abs(float(newest.pixels.mean()) - 20 * newest.index) <= 4
        assert source.dropped == OPENING + 3 - 2
        sender.send(2)
        until(lambda: source.received == OPENING + 5)
        assert [frame.index for frame in frames] == [OPENING + 4]  # and then the stream has ended
        assert source.dropped == OPENING + 5 - 3
        source.close()


def test_live_source_that_falls_silent_is_given_up() -> None:
    with camera([gray(9)] * (OPENING + 1)) as sender:
        sender.send(OPENING)
        source = live(sender.url, timeout_s=2)
        with pytest.raises(ConfigError, match=r"no frame for 2 s. Fix: check the source"):
            for _ in source.frames():
                pass
        assert source.received == OPENING
        source.close()


def test_camera_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    capture = cv2.VideoCapture(str(write_video(tmp_path / "a.avi", [gray(9)] * 4)), cv2.CAP_FFMPEG)
    source, found = LiveVideo(capture, "camera:0", 3, TIMEOUT_S, may_end=False), list[int]()
    with pytest.raises(ConfigError, match="camera:0: it broke off after 4 frames"):
        found.extend(frame.index for frame in source.frames())
    assert found[-1] == 3
    assert source.dropped == 4 - len(found)


def test_stream_of_a_known_length_drops_nothing(tmp_path: Path) -> None:
    write_video(tmp_path / "a.avi", [gray(30 * i) for i in range(8)])
    with served(tmp_path) as address:
        source = open_video(f"{address}/a.avi", 3, TIMEOUT_S)
        assert [frame.index for frame in source.frames()] == list(range(8))
        assert source.dropped == 0
        source.close()


def test_written_video_shows_each_image_as_long_as_it_was_seen(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "new" / "out.mp4", FPS)
    for level, seconds in ((0, 0.0), (80, 0.1), (160, 0.4)):  # the frames at 0.2 s and 0.3 s were dropped
        writer.add(gray(level, 49, 63), seconds)
    writer.add(gray(240, 90, 40), 0.5)  # of another size
    writer.close()
    found = frames_of(tmp_path / "new" / "out.mp4")
    assert found[0].pixels.shape == (50, 64, 3)
    assert np.abs(np.array([frame.pixels[20, 2, 0] for frame in found], int) - (0, 80, 80, 80, 160, 240)).max() < 8


def test_video_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken.mp4").mkdir()
    writer = VideoWriter(tmp_path / "taken.mp4", FPS)
    writer.add(gray(0), 0)
    with pytest.raises(ConfigError, match=r"taken\.mp4: the video cannot be written"):
        writer.add(gray(0), 0.1)


@pytest.fixture(scope="module")
def predictor(packed: Path) -> Predictor:
    return gauntlet.load(packed)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "digits.mkv", digits(20), "FFV1")


def test_frames_are_predicted_as_the_same_images_are(predictor: Predictor, video: Path) -> None:
    predictions = predict_frames(predictor, video)
    found = list(predictions)
    assert [frame.index for frame in found] == list(range(20))
    labels = [frame.prediction.top[0].label for frame in found]  # type: ignore[attr-defined]
    assert labels == [predictor(png(number)).top[0].label for number in range(20)]  # type: ignore[attr-defined]
    assert found[3].prediction == predictor(cv2.imencode(".png", found[3].pixels)[1].tobytes())
    summary = predictions.summary()
    assert (summary.frames, summary.dropped) == (20, 0)
    assert summary.latency_p50_ms == pytest.approx(np.median([frame.latency_ms for frame in found]))
    assert 0 < summary.latency_p50_ms <= summary.latency_p95_ms  # type: ignore[operator]
    assert summary.frames_per_second == pytest.approx(20 / summary.seconds)
    assert "20 frames in " in summary.text()
    assert [*summary.stages_p95_ms] == ["decode", "preprocess", "infer", "postprocess"]
    assert all(ms > 0 for ms in summary.stages_p95_ms.values())


def test_source_is_closed_when_the_iteration_is_left(predictor: Predictor) -> None:
    with camera(digits(OPENING + 1)) as sender:
        sender.send(OPENING)
        predictions = predict_frames(predictor, sender.url, timeout_s=60)
        for _ in predictions:
            break
        assert isinstance(predictions, VideoPredictions)
        source = predictions.source
        assert isinstance(source, LiveVideo)
        sender.send(1)
        until(lambda: not source._thread.is_alive())


def test_model_of_arrays_takes_no_video(tmp_path: Path, video: Path) -> None:
    from graded_bundles import make_bundle

    make_bundle(tmp_path / "b")
    with pytest.raises(ConfigError, match="the model takes x float32"):
        predict_frames(gauntlet.load(tmp_path / "b"), video)
