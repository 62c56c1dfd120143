"""The commands of this wing; like all parsers, it imports nothing that takes long."""

from flows.cli.commands import SERVERS, Commands, adder

USES = {"completion": (SERVERS, "gauntlet completion bash")}


def add_commands(commands: Commands) -> None:
    """Add `completion`."""
    text = "print what completes commands, options, presets and runs in a shell"
    place = 'in ~/.bashrc or ~/.zshrc: eval "$(gauntlet completion bash)", or zsh'
    completion = adder(commands, "wings.first_steps", USES)(
        "completion", "completion_command:print_completion", text, place
    )
    completion.add_argument("shell", choices=("bash", "zsh"), help="the shell")
