"""Makes the tables of Prefect and MLflow in PostgreSQL: `python -m wings.platform.prepare_databases`.

Two servers that start on an empty database at the same time both make its tables, and one of them ends with an error.
Here a lock of the database lets one process at a time do it; the others find everything made.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from gauntlet.core.errors import ConfigError, PipelineError, StageError, one_line, without_password

PREFECT = "PREFECT_API_DATABASE_CONNECTION_URL"
MLFLOW = "MLFLOW_BACKEND_STORE_URI"
LOCK = 0x676175  # of PostgreSQL's advisory locks; any number that others do not use
PAUSE_S = 0.5
WRONG_SETTINGS = ("authentication failed", "does not exist", "permission denied", "no pg_hba.conf entry")
WRONG_TLS = ("certificate", "signature failure", "sslmode", "does not support SSL")
FIX_TLS = "Fix: PGSSLROOTCERT names the file of the CA that signed the server's certificate, and the address its host"


def prepare_databases() -> list[str]:
    """Make the tables of whichever of the two the environment names an address for; return their names.

    Raises:
        ConfigError: for an address that is not PostgreSQL's, a wrong password, a certificate that is not trusted, or a
            database that does not exist.
        StageError: when the server cannot be reached, or the tables cannot be made.
    """
    steps: dict[str, Callable[[], None]] = {PREFECT: make_prefect_tables, MLFLOW: make_mlflow_tables}
    variables = [variable for variable in steps if os.environ.get(variable)]
    if not variables:
        raise ConfigError(f"no database is named. Fix: set {PREFECT}, {MLFLOW}, or both, as for the servers")
    for variable in variables:
        with one_at_a_time(variable, postgres_address(variable)):
            steps[variable]()
    return variables


def postgres_address(variable: str) -> URL:
    """Return the address that a variable holds; `ConfigError` when it is not one of PostgreSQL."""
    text = os.environ[variable]
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise ConfigError(
            f"{variable}: not an address. Fix: postgresql+DRIVER://USER:PASSWORD@HOST/DATABASE"
        ) from error
    if url.get_backend_name() != "postgresql":
        raise ConfigError(f"{variable}={without_password(text)}: only PostgreSQL's tables are made ahead of time")
    driver = url.get_driver_name()
    own, foreign = ("ssl", {"sslmode", "sslrootcert"}) if driver == "asyncpg" else ("sslmode", {"ssl"})
    if wrong := sorted(foreign & url.query.keys()):
        raise ConfigError(
            f"{variable}: {driver} has no option {wrong[0]!r}. Fix: ?{own}=verify-full in the address, "
            "and the file of the CA in the environment variable PGSSLROOTCERT"
        )
    return url


def libpq_arguments(url: URL) -> dict[str, str]:
    """Return what libpq needs to connect as the driver of an address does, with the same demands on TLS."""
    query = {"sslmode" if option == "ssl" else option: value for option, value in url.query.items()}
    same = url.set(drivername="postgresql+psycopg2", query=query)
    return dict(same.get_dialect()().create_connect_args(same)[1])


@contextmanager
def one_at_a_time(variable: str, url: URL) -> Iterator[None]:
    """Hold the database's lock, which the server releases however this process ends."""
    import psycopg2

    try:
        connection = psycopg2.connect(**libpq_arguments(url))
    except psycopg2.Error as error:
        raise refusal(variable, error) from error
    with closing(connection):
        connection.autocommit = True
        cursor = connection.cursor()
        # Asked for again and again: a statement that waits for the lock would itself be waited for by Prefect's
        # CREATE INDEX CONCURRENTLY.
        while cursor.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)) or cursor.fetchone() != (True,):
            time.sleep(PAUSE_S)
        yield


def refusal(variable: str, error: Exception) -> PipelineError:
    """Return why a database cannot be used: wrong settings, or a server that does not respond."""
    text = one_line(error)
    if any(words in text for words in WRONG_TLS):
        return ConfigError(f"{variable}: {text}. {FIX_TLS}")
    wrong = any(words in text for words in (*WRONG_SETTINGS, "invalid dsn"))
    return (ConfigError if wrong else StageError)(f"{variable}: {text}")


def make_prefect_tables() -> None:
    """Make or upgrade Prefect's tables with its own command, which takes the address from the environment."""
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        lines = done.stdout.strip().splitlines() or [""]
        raise StageError(f"{PREFECT}: Prefect could not make its tables: {without_password(one_line(lines[-1]))}")


def make_mlflow_tables() -> None:
    """Make MLflow's tables, as its server does when it starts; older ones it asks to upgrade."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        MlflowClient(os.environ[MLFLOW]).search_experiments(max_results=1)
    except (MlflowException, SQLAlchemyError) as error:
        raise StageError(f"{MLFLOW}: MLflow could not make its tables: {without_password(one_line(error))}") from error


def main() -> int:
    """Make the tables and say so; return the exit code."""
    try:
        made = prepare_databases()
    except PipelineError as error:
        print(f"prepare_databases: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    print(f"ready: {', '.join(made)}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
