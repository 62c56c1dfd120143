"""The commands of this wing; like all parsers, it imports nothing that takes long."""

from flows.cli.argument_types import names
from flows.cli.commands import INVALID, MODELS, Commands, adder

USES = {
    "diagnose": (MODELS, "gauntlet diagnose model.onnx --fix fixed.onnx"),
    "cut": (MODELS, "gauntlet cut model.onnx part.onnx --outputs features"),
    "join": (MODELS, "gauntlet join detector.onnx reader.onnx joined.onnx --boxes boxes"),
    "inspect": (MODELS, "gauntlet inspect model.onnx"),
}


def add_commands(commands: Commands) -> None:
    """Add `diagnose`, `cut`, `join` and `inspect`."""
    add = adder(commands, "wings.inspection", USES)
    codes = f"exit codes: 0 no error found, 1 an error found, {INVALID}, 3 the file cannot be read"
    diagnose = add("diagnose", "diagnose_command:diagnose_model", "find common faults of a model, and fix them", codes)
    diagnose.add_argument("model", metavar="MODEL", help="an .onnx file; it is opened in a process of its own")
    diagnose.add_argument("--data", metavar="FILE.npz", help="samples by input name, and expected outputs by theirs")
    diagnose.add_argument("--layout", choices=["NCHW", "NHWC"], help="memory layout of the caller's images")
    diagnose.add_argument("--constants", metavar="FILE.npz", help="values of leaked constants, by input name")
    diagnose.add_argument("--fix", metavar="OUT.onnx", help="write a copy in which what can be fixed safely is fixed")
    which = "also say which nodes each target takes; by default one target of each kind"
    diagnose.add_argument("--targets", type=names, nargs="?", const=[], metavar="NAME,...", help=which)
    diagnose.add_argument("--timeout", type=float, metavar="SECONDS", help="by default 30, more for large files")
    diagnose.add_argument("--json", action="store_true", help="print JSON")
    part = "write the part of a model between tensors inside it as a model of its own"
    cut = add("cut", "cut_command:cut", part, f"exit codes: 0 written, {INVALID}, 3 the file cannot be read")
    cut.add_argument("model", metavar="MODEL", help="an .onnx file")
    cut.add_argument("output", metavar="OUT.onnx", help="where the part goes")
    inner = "tensors that become inputs; inputs that the part still needs stay"
    cut.add_argument("--inputs", type=names, default=[], metavar="NAME,...", help=inner)
    ends = "tensors that become the outputs; by default the model's own"
    cut.add_argument("--outputs", type=names, default=[], metavar="NAME,...", help=ends)
    both = "write a detector and the model that reads what it finds as one model"
    join = add("join", "cut_command:join", both, f"exit codes: 0 written, {INVALID}, 3 a file cannot be read")
    join.add_argument("detector", metavar="DETECTOR", help="an .onnx file that takes images and gives boxes")
    join.add_argument("reader", metavar="READER", help="an .onnx file that takes what is cut out")
    join.add_argument("output", metavar="OUT.onnx", help="where the model goes")
    corners = "output of the detector: left, top, right, bottom in pixels"
    join.add_argument("--boxes", required=True, metavar="NAME", help=corners)
    replaced = "output of the detector that becomes the reader's class"
    join.add_argument("--classes", metavar="NAME", help=replaced)
    ordered = "also give a text: boxes in the order of this edge"
    join.add_argument("--text", choices=["left", "top"], help=ordered)
    shows = "show what a model holds: shapes, parameters, MACs, layers, graph"
    inspect = add("inspect", "inspect_command:inspect_model", shows)
    inspect.add_argument("model", metavar="MODEL", help="an .onnx file; its external data is not read")
    views = inspect.add_mutually_exclusive_group()
    views.add_argument("--graph", action="store_true", help="print every node with its shapes")
    views.add_argument(
        "--weights", action="store_true", help="print the range, mean and spread of each layer's weights"
    )
    views.add_argument("--json", action="store_true", help="print JSON")
