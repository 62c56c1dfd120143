"""`gauntlet worker`: race targets on this machine for the runs of other machines."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import NoReturn

from flows.record.home import Home
from flows.servers.local_servers import profile_api_url, running
from flows.servers.password import prefect_variables, refusal
from gauntlet.core.errors import ConfigError, StageError, one_line
from gauntlet.targets.base import POOL_NAME


def start_worker(options: argparse.Namespace) -> int:
    """Create the pool and its deployment where they are missing, then become Prefect's worker of the pool.

    Raises:
        ConfigError: when an argument is invalid, no Prefect server is known, or the pool's type is another one.
        StageError: when the server does not respond.
    """
    pool, home = options.pool, Home.find()
    if not re.match(POOL_NAME, pool):
        raise ConfigError(f"--pool {pool}: expected letters, digits, dots, dashes and underscores")
    if options.store and not Path(options.store).is_dir():
        raise ConfigError(f"--store {options.store}: no such folder; mount the store of the runs there")
    os.environ |= _server(home)
    _deploy(pool, starts_worker=not options.deploy_only)
    print(f"Runs race here with `on: {pool}` at a target of benchmark.targets.", flush=True)  # noqa: T201
    if not options.deploy_only:
        _become_worker(pool, home, options.store)
    return 0


def _become_worker(pool: str, home: Home, store: str | None) -> NoReturn:
    from wings.machines.race_flow import SHARED_STORE

    os.environ["GAUNTLET_HOME"] = str(home.root)
    if store:
        os.environ[SHARED_STORE] = str(Path(store).resolve())
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process", "--limit", "1"]
    os.execv(sys.executable, command)


def _server(home: Home) -> dict[str, str]:
    """Return the environment variables of the server that is named, or of the one that runs for this home."""
    if named := os.environ.get("PREFECT_API_URL") or profile_api_url():
        return {"PREFECT_API_URL": named}
    if own := running(home):
        return prefect_variables(home, own)
    raise ConfigError(
        "no Prefect server is known; name that of the runs, for example PREFECT_API_URL=http://HOST:4200/api"
    )


def _deploy(pool: str, *, starts_worker: bool) -> None:
    """Create what is missing on the server."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    from wings.machines.pools import PROCESS, deploy_race, find_or_create

    try:
        with get_client(sync_client=True) as client:
            kind = find_or_create(client, pool).type
            if starts_worker and kind != PROCESS:
                raise ConfigError(
                    f"--pool {pool}: its type is {kind}, so its workers start in another way; add --deploy-only, "
                    "or name another pool"
                )
        deploy_race(pool)
    except (httpx.HTTPError, PrefectHTTPStatusError, RuntimeError) as error:
        raise refusal(error) or StageError(
            f"Prefect server {os.environ['PREFECT_API_URL']}: {one_line(error)}"
        ) from error
