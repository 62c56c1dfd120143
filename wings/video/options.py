"""What `gauntlet predict` takes for videos; like all parsers, it imports nothing that takes long."""

import argparse

from flows.cli.argument_types import at_least


def add_input(predict: argparse.ArgumentParser) -> None:
    """Let `predict` take a video."""
    kinds = (
        "INPUT may be one video: a file, camera:0, or the address of a stream (http, rtsp); --draw takes FILE.mp4, too"
    )
    video = predict.add_argument_group("a video", kinds)
    video.add_argument("--frames", type=at_least(1), metavar="N", help="predict at most so many frames of a video")
    silent = "wait so long for a silent camera or stream; by default 10"
    video.add_argument("--timeout", type=at_least(1), metavar="S", help=silent)
    predict.set_defaults(command="wings.video.predict_video:predict")
