"""The commands of this wing; like all parsers, it imports nothing that takes long."""

from flows.cli.commands import FIND, SERVERS, Commands, adder
from flows.cli.options import add_model_options

USES = {
    "init": (FIND, "gauntlet init model.onnx --data images --goal size"),
    "completion": (SERVERS, "gauntlet completion bash"),
}


def add_commands(commands: Commands) -> None:
    """Add `init` and `completion`."""
    add = adder(commands, "wings.first_steps", USES)
    text = "write a preset for a model, and ask on the terminal for what is not given"
    init = add("init", "init_command:init", text)
    init.add_argument("config", metavar="MODEL", nargs="?", help="a model file, as for run")
    goal = "speed, size, memory, or the largest drop of accuracy, such as 0.01"
    init.add_argument("--goal", metavar="GOAL", help=goal)
    init.add_argument("--out", metavar="FILE.yaml", help="by default the name of the model")
    add_model_options(init)
    text = "print what completes commands, options, presets and runs in a shell"
    place = 'in ~/.bashrc or ~/.zshrc: eval "$(gauntlet completion bash)", or zsh'
    completion = add("completion", "completion_command:print_completion", text, place)
    completion.add_argument("shell", choices=("bash", "zsh"), nargs="?", default="bash", help="the shell")
