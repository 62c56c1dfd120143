"""A bundle's model predicts videos as it predicts image files, and says how fast."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from bundles import png
from videos import OPENING, camera, digits, until, write_video

import gauntlet
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.errors import ConfigError
from wings.prediction.library.video_files import LiveVideo
from wings.prediction.library.video_prediction import VideoPredictions, predict_frames


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
