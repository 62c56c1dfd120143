"""The command of this wing; like all parsers, it imports nothing that takes long."""

from flows.cli.argument_types import at_least
from flows.cli.commands import INVALID, USE, Commands, adder

USES = {"predict": (USE, "gauntlet predict winner.zip image.png")}


def add_commands(commands: Commands) -> None:
    """Add `predict`."""
    codes = f"exit codes: 0 predicted, 1 an image cannot be read, {INVALID}, 3 the model cannot run, 130 interrupted"
    add = adder(commands, "wings.prediction", USES)
    predict = add("predict", "predict_command:predict", "predict images, tables, arrays or video with a bundle", codes)
    predict.add_argument("bundle", metavar="BUNDLE", help="folder or .zip of a bundle, or models:/NAME@ALIAS")
    inputs = (
        "images, folders, or - for standard input; or one file of arrays by input: .npz, or a table such as .csv, its "
        "columns named or ordered as in the training"
    )
    predict.add_argument("inputs", nargs="+", metavar="INPUT", help=inputs)
    predict.add_argument("--json", action="store_true", help="print one JSON object a line for each input")
    drawn = "write the images with their predictions drawn"
    predict.add_argument("--draw", metavar="FOLDER", help=drawn)
    predict.add_argument("--out", metavar="FILE.npz", help="write the model's outputs for a file of arrays")
    predict.add_argument("--threads", type=at_least(1), metavar="N", help="by default as in the race")
    predict.add_argument("--provider", metavar="NAME", help="execution provider, such as cuda")
    kinds = (
        "INPUT may be one video: a file, camera:0, or the address of a stream\n(http, rtsp); --draw takes FILE.mp4, too"
    )
    video = predict.add_argument_group("a video", kinds)
    video.add_argument("--frames", type=at_least(1), metavar="N", help="predict at most so many frames of a video")
    silent = "wait so long for a silent camera or stream; by default 10"
    video.add_argument("--timeout", type=at_least(1), metavar="S", help=silent)
