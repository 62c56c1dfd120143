"""A real PostgreSQL on a free port, with the databases that `docker/postgres-init.sql` makes."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import needs

from flows.servers.local_servers import free_port

INIT = Path(__file__).parents[1] / "docker" / "postgres-init.sql"
SUPERUSER = "postgres"
OWNERS = ("prefect", "mlflow")


def password() -> str:
    return secrets.token_hex(24)


@dataclass
class PostgresCluster:
    """A server of its own, with a password for each role."""

    programs: Path
    folder: Path
    user: str | None
    port: int = field(default_factory=free_port)
    passwords: dict[str, str] = field(default_factory=lambda: {role: password() for role in (SUPERUSER, *OWNERS)})

    def address(self, database: str, role: str | None = None, driver: str = "psycopg2") -> str:
        """Return an address for SQLAlchemy."""
        role = role or database
        return f"postgresql+{driver}://{role}:{self.passwords[role]}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Make the cluster, start it, and make the roles and their databases."""
        secret = self.folder / "password"
        secret.write_text(self.passwords[SUPERUSER])
        if self.user:
            for path in (self.folder, secret):
                shutil.chown(path, self.user)
        scram = ("--auth", "scram-sha-256", "--pwfile", secret)
        self._as_user("initdb", "--pgdata", self.data, "--username", SUPERUSER, "--encoding", "UTF8", *scram)
        settings = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories='' -c fsync=off"
        self._as_user(
            "pg_ctl", "start", "--pgdata", self.data, "--log", self.log, "--wait", "-t", "300", "-o", settings
        )
        secrets_of_owners = {f"{owner.upper()}_DB_PASSWORD": self.passwords[owner] for owner in OWNERS}
        self.client("psql", "--set", "ON_ERROR_STOP=1", "--file", INIT, **secrets_of_owners)

    def stop(self) -> None:
        """End the server."""
        if (self.data / "postmaster.pid").exists():
            self._as_user("pg_ctl", "stop", "--pgdata", self.data, "--mode", "immediate")

    def client(self, program: str, *words: str | Path, role: str = SUPERUSER, **environment: str) -> str:
        """Run one of PostgreSQL's clients as a role and return what it prints."""
        known = {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": role, "PGPASSWORD": self.passwords[role]}
        known |= {"PGDATABASE": "postgres", **environment}
        return self._run([self.programs / program, *words], environment=known)

    def query(self, database: str, statement: str, role: str = SUPERUSER) -> str:
        """Return what a statement returns, as text without headings."""
        return self.client("psql", "-X", "-A", "-t", "-c", statement, role=role, PGDATABASE=database).strip()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def _as_user(self, program: str, *words: str | Path) -> str:
        return self._run([self.programs / program, *words], user=self.user)

    def _run(
        self, command: list[str | Path], *, user: str | None = None, environment: dict[str, str] | None = None
    ) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **(environment or {})},
            user=user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@contextmanager
def postgres_cluster(folder: Path) -> Iterator[PostgresCluster]:
    """Start a cluster that is ended at the end; skip the test where PostgreSQL or a driver is not installed.

    PostgreSQL refuses to run as root: there, another user runs it, in a folder that this user can reach.
    """
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = installed[-1] if installed else shutil.which("initdb")
    if found is None:
        needs.missing("PostgreSQL is not installed")
    try:
        import asyncpg  # noqa: F401
        import psycopg2  # noqa: F401
    except ModuleNotFoundError as error:
        needs.missing(f"{error.name} is not installed")
    root = os.geteuid() == 0
    place = Path(tempfile.mkdtemp(prefix="gauntlet-postgres-", dir="/tmp")) if root else folder  # not in a private one
    cluster = PostgresCluster(Path(found).parent, place, "nobody" if root else None)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        if root:
            shutil.rmtree(place, ignore_errors=True)
