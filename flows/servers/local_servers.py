"""Servers on this machine's loopback: a Prefect server for runs that have none, and an MLflow server for people."""

import contextlib
import json
import os
import shlex
import signal
import socket
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

import psutil

from flows.record.home import Home
from flows.record.locks import locked, try_exclusive
from flows.servers.database_templates import copy_template
from flows.servers.password import SERVER, password, prefect_variables, require_access
from flows.servers.ports import HOST, Port
from gauntlet.core.artifact import write_atomically
from gauntlet.core.errors import StageError
from gauntlet.runtime.resources import environment_variables

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Of Linux alone."""
MLFLOW_NOTE = "mlflow-server.json"
"""In a home: the process of its MLflow server."""
OWN_MODULE = ("-P", "-m")
"""Python's options that run a module, and import none from the working directory: a user's `flows.py` may be there."""
PREFECT_PORT = 4200
START_TIMEOUT_S = 120


@contextmanager
def prefect_server(home: Home, port: int = PREFECT_PORT, while_starting: Callable[[], object] = int) -> Iterator[str]:
    """Give this process a Prefect server, and yield the address of its API. `while_starting` is called in the meantime.

    The user's own server is used where the environment or the Prefect profile names one. Otherwise all runs of this
    home share one on the loopback, which its last user stops: each holds a shared lock, which the kernel releases even
    when a process is killed.
    """
    url = os.environ.get("PREFECT_API_URL") or profile_api_url()
    if url:
        while_starting()
        yield url
        return
    home.create()
    home.prefect.mkdir(exist_ok=True)
    with locked(home.prefect / "users.lock", shared=True) as users, ExitStack() as changed:
        try:  # from here on, so that an interrupted start leaves no server behind either
            with locked(home.prefect / "start.lock"):
                if url := running(home):
                    changed.enter_context(environment_variables(prefect_variables(home, url)))
                    while_starting()
                else:
                    taken = Port.take(port)
                    changed.enter_context(environment_variables(prefect_variables(home, f"{taken.address}/api")))
                    start_prefect(home, taken, while_starting)
            yield os.environ["PREFECT_API_URL"]
        finally:
            if try_exclusive(users):
                stop_prefect(home)


def profile_api_url() -> str | None:
    """Return the server that the user's active Prefect profile names, without importing Prefect."""
    folder = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))
    try:
        profiles = tomllib.loads((folder / "profiles.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError):
        return None
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    url = profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")
    return str(url) if url else None


def running(home: Home) -> str | None:
    """Return the API address of this home's server, if it runs; wait for one that is slow.

    Raises:
        ConfigError: when it has another password than the environment names.
        StageError: when it runs and does not respond: a second server on its database would damage it.
    """
    if (process := recorded_process(home)) is None:
        return None
    url = str(json.loads((home.prefect / "server.json").read_text())["url"])
    if comes_up(process, f"{url}/health"):
        require_access(home, url)
        return url
    if not is_alive(process):
        return None
    raise StageError(
        f"the Prefect server of {home.root} (process {process.pid}) has not responded for {START_TIMEOUT_S} s; "
        f"see {home.prefect / 'server.log'}, or end it and start again"
    )


def comes_up(process: psutil.Process, url: str) -> bool:
    """Wait until a server responds; return whether it does before it ends and in time, whatever else runs here."""
    deadline_s, before_s, waited_s = time.monotonic() + START_TIMEOUT_S, _processor_wait_s(process), 0.0
    while not responds(url) and is_alive(process):
        waited_s = max(waited_s, _processor_wait_s(process) - before_s)  # a child that ends takes its count with it
        if time.monotonic() > deadline_s + waited_s:
            return False
        time.sleep(0.1)
    return is_alive(process)


def _processor_wait_s(process: psutil.Process) -> float:
    """Return for how long a process and its children were ready to run and had no processor; 0 where no one counts."""
    with contextlib.suppress(psutil.Error, OSError):  # such as a child that ends meanwhile
        files = [Path(f"/proc/{each.pid}/schedstat") for each in (process, *process.children(recursive=True))]
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9  # of their main threads
    return 0.0


def is_alive(process: psutil.Process) -> bool:
    """Tell whether a process runs, not counting one that has ended and waits for its parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def start_prefect(home: Home, port: Port, while_starting: Callable[[], object]) -> psutil.Popen:
    """Start the server, note its process and address, and wait until it responds."""
    environment = os.environ | {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port.number),  # without it, the page calls port 4200 wherever it is
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": port.address,  # the default lets any page that a user visits read it
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # In memory, the default, a killed server forgets who holds a concurrency limit: it would stay taken forever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        SERVER: password(home),
    }
    command = [sys.executable, *OWN_MODULE, "flows.servers.prefect_app"]
    copy_template("prefect", home.prefect / "prefect.db")
    process = launch(command, environment, home.prefect / "server.log", port.listener())
    note_server(home.prefect / "server.json", process, f"{port.address}/api")
    while_starting()
    wait_until_up(process, f"{port.address}/api/health", "Prefect server", home.prefect / "server.log")
    return process


def stop_prefect(home: Home) -> None:
    """Stop this home's server, if it runs."""
    process = recorded_process(home)
    if process is not None:
        stop(process)
    (home.prefect / "server.json").unlink(missing_ok=True)


def note_server(file: Path, process: psutil.Process, url: str) -> None:
    """Write down a server's process and address, by which other processes find it."""
    write_atomically(file, json.dumps({"pid": process.pid, "began": began(process), "url": url}))


def began(process: psutil.Process) -> str:
    """Return in which boot of the machine a process began, and how many seconds after it.

    Ids of processes are used again. The time of day does not tell them apart: it changes when the clock is set.
    """
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    return f"{boot} {process.create_time() - psutil.boot_time():.2f}"


def process_that_began(pid: int | None, at: str) -> psutil.Process | None:
    """Return the process with an id that `began` then, or None where that one has ended."""
    try:
        process = psutil.Process(pid) if pid is not None else None
        return process if process is not None and began(process) == at else None
    except psutil.NoSuchProcess:
        return None


def shares_mlflow(home: Home) -> bool:
    """Tell whether this home's MLflow server runs, which other homes may use."""
    return recorded_process(home, home.root / MLFLOW_NOTE) is not None


def runs_mlflow(home: Home, address: str) -> bool:
    """Tell whether the server at an address is this home's MLflow; only it is given the home's password."""
    return shares_mlflow(home) and json.loads((home.root / MLFLOW_NOTE).read_text())["url"] == address


def recorded_process(home: Home, file: Path | None = None) -> psutil.Process | None:
    """Return the noted server process, Prefect's or that of a file, unless it has ended and another has its id."""
    try:
        note = json.loads((file or home.prefect / "server.json").read_text())
        return process_that_began(note["pid"], note["began"])
    except (OSError, ValueError, KeyError):
        return None


def start_mlflow(home: Home, port: Port, *, asks: bool = False) -> psutil.Popen:
    """Start MLflow's server on this home's store and wait until it responds; `asks`: for the home's password.

    Files of its experiments are in the home's folder, as those of runs that write the store themselves: with MLflow's
    own addresses of files, a run in a terminal could not add any.
    """
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # saves eight processes
    environment |= {SERVER: password(home)} if asks else {}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [sys.executable, *OWN_MODULE, "mlflow", "server", "--host", HOST, "--port", str(port.number)]
    options = shlex.join(["--fd", "0", "--app-dir", str(Path(__file__).parents[2])])
    command += ["--workers", "1", "--uvicorn-opts", options, *(("--app-name", "gauntlet") if asks else ())]
    command += ["--backend-store-uri", home.mlflow_uri, "--default-artifact-root", (home.root / "mlartifacts").as_uri()]
    with locked(home.locks / "mlflow-experiment"):
        copy_template("mlflow", home.mlflow_db)
    process = launch(command, environment, home.root / "mlflow-server.log", port.listener())
    note_server(home.root / MLFLOW_NOTE, process, port.address)
    wait_until_up(process, f"{port.address}/health", "MLflow server", home.root / "mlflow-server.log")
    return process


def launch(
    command: list[str], environment: dict[str, str], log: Path, listener: socket.socket | None = None
) -> psutil.Popen:
    """Start a server in a session of its own: Ctrl-C reaches this process only, which stops the server in order.

    A `listener` becomes the server's standard input, which is then its socket, as with inetd, and is closed here.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output, listener or contextlib.nullcontext():
        socket_or_ours = None if listener is None else listener.fileno()
        return psutil.Popen(
            command, env=environment, stdin=socket_or_ours, stdout=output, stderr=output, start_new_session=True
        )


def wait_until_up(process: psutil.Popen, url: str, name: str, log: Path) -> None:
    """Wait until a new server responds; raise `StageError` when it ends instead, or does not respond in time."""
    if comes_up(process, url):
        return
    if not is_alive(process):
        raise StageError(f"{name} did not start: it ended with exit code {process.wait()}; see {log}")
    stop(process)
    raise StageError(f"{name} did not respond within {START_TIMEOUT_S} s; see {log}")


def stop(process: psutil.Process, patience_s: float = 10) -> None:
    """Stop a server with SIGTERM, and then its children that it left; kill what remains after `patience_s`."""
    try:
        children = process.children(recursive=True)
        process.send_signal(signal.SIGTERM)
    except psutil.NoSuchProcess:
        return
    _, deaf = psutil.wait_procs([process], timeout=patience_s)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    alive = [*deaf, *psutil.wait_procs(children, timeout=patience_s)[1]]
    for survivor in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    psutil.wait_procs(alive, timeout=patience_s)


def responds(url: str) -> bool:
    """Tell whether a GET of the address succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # an address that we made or noted ourselves
            return bool(response.status == 200)
    except (OSError, HTTPException):  # nobody is there, or something that does not speak HTTP
        return False
