"""The options of `gauntlet serve`."""

from flows.cli.argument_types import at_least
from flows.cli.commands import INVALID, USE, Commands, adder

USES = {"serve": (USE, "gauntlet serve winner.zip")}


def add_commands(commands: Commands) -> None:
    """Add the command."""
    codes = f"exit codes: 0 stopped, 1 a bundle cannot be served, {INVALID}"
    add = adder(commands, "serving", USES)
    serve = add("serve", "serve_command:serve_bundles", "serve bundles over HTTP (Open Inference Protocol v2)", codes)
    serve.add_argument("bundles", nargs="*", metavar="BUNDLE", help="folder or .zip of a bundle, or models:/NAME@ALIAS")
    serve.add_argument("--name", help="name of the model in addresses; by default the bundle's")
    wait = "also start before models:/NAME@ALIAS names a version"
    serve.add_argument("--wait", action="store_true", help=wait)
    serve.add_argument("--repository", metavar="FOLDER", help="bundles that clients may load by name")
    serve.add_argument("--host", default="127.0.0.1", help="by default 127.0.0.1; any other needs --token-file")
    serve.add_argument("--port", type=int, default=8080, help="by default 8080; 0 takes a free one")
    inherited = "listen on this open socket, as a service manager hands it over"
    serve.add_argument("--fd", type=at_least(0), metavar="N", help=inherited)
    tokens = "tokens of clients, one a line, each with its rights or all; or one in $GAUNTLET_TOKEN"
    serve.add_argument("--token-file", metavar="FILE", help=tokens)
    serve.add_argument("--tls-cert", metavar="FILE", help="serve over HTTPS with this certificate chain, in PEM")
    serve.add_argument("--tls-key", metavar="FILE", help="its key, in PEM")
    serve.add_argument("--threads", type=at_least(1), metavar="N", help="of a session; by default the winner's")
    serve.add_argument("--provider", metavar="NAME", help="execution provider, such as cuda")
    deadline = "from a request's last byte to its outputs, by default 1000"
    serve.add_argument("--deadline-ms", type=float, metavar="MS", help=deadline)
    serve.add_argument("--max-queue", type=at_least(1), metavar="N", help="requests that wait, by default 1024")
    serve.add_argument("--max-rows", type=at_least(1), metavar="N", help="samples of a request, by default 256")
    serve.add_argument("--max-body-mb", type=float, metavar="MB", help="size of a request, by default 64")
    serve.add_argument(
        "--max-image-megapixels", type=float, metavar="MP", help="of a request's images together, by default 32"
    )
    serve.add_argument("--read-timeout-s", type=float, metavar="S", help="to receive a request, by default 30")
    logged = "log requests into this folder, for `gauntlet monitor`; by default no log"
    serve.add_argument("--request-log", metavar="FOLDER", help=logged)
    serve.add_argument("--log-share", type=float, metavar="SHARE", help="of the requests in the log, by default 1")
    kept = "what the log keeps of inputs; by default statistics"
    serve.add_argument("--log-inputs", choices=["none", "statistics", "embeddings", "all"], help=kept)
    serve.add_argument("--log-max-mb", type=float, metavar="MB", help="size of the request log, by default 1000")
    levels = ["debug", "info", "warning", "error"]
    serve.add_argument("--log-level", choices=levels, default="info", help="`info` logs each request")
