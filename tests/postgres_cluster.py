"""A real PostgreSQL on a free port, with the databases that `docker/postgres-init.sql` makes."""

import contextlib
import ipaddress
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import needs
import psutil
from free_ports import free_port

from flows.servers.ports import HOST

INIT = Path(__file__).parents[1] / "docker" / "postgres-init.sql"
SUPERUSER = "postgres"
OWNERS = ("prefect", "mlflow")


TLS = {"asyncpg": "?ssl=verify-full", "psycopg2": "?sslmode=verify-full"}
"""What an address needs so that the server proves who it is."""


def password() -> str:
    return secrets.token_hex(24)


def write_certificate(folder: Path, address: str) -> None:
    """Write `ca.pem`, and `server.pem` and `server.key` that it has signed, for a server at an IP address."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.now(UTC)
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"CA {secrets.token_hex(4)}")])
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, address)])
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    for file, subject, public, extension in (
        ("ca.pem", issuer, ca_key.public_key(), x509.BasicConstraints(ca=True, path_length=0)),
        ("server.pem", name, key.public_key(), alternative),
    ):
        builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=2))
        signed = builder.add_extension(extension, critical=file == "ca.pem").sign(ca_key, hashes.SHA256())
        (folder / file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    (folder / "server.key").chmod(0o600)


@dataclass
class PostgresCluster:
    """A server of its own, with a password for each role; with `tls`, it takes no connection without it."""

    programs: Path
    folder: Path
    user: str | None
    tls: bool = False
    port: int = field(default_factory=free_port)
    passwords: dict[str, str] = field(default_factory=lambda: {role: password() for role in (SUPERUSER, *OWNERS)})

    def address(self, database: str, role: str | None = None, driver: str = "psycopg2") -> str:
        """Return an address for SQLAlchemy."""
        role = role or database
        server = f"{role}:{self.passwords[role]}@{HOST}:{self.port}"
        return f"postgresql+{driver}://{server}/{database}{TLS[driver] if self.tls else ''}"

    def start(self) -> None:
        """Make the cluster, start it, and make the roles and their databases."""
        secret = self.folder / "password"
        secret.write_text(self.passwords[SUPERUSER])
        if self.user:
            for path in (self.folder, secret):
                shutil.chown(path, self.user)
        scram = ("--auth", "scram-sha-256", "--pwfile", secret)
        self._as_user("initdb", "--pgdata", self.data, "--username", SUPERUSER, "--encoding", "UTF8", *scram)
        if self.tls:
            self._demand_tls()
        self.run()
        secrets_of_owners = {f"{owner.upper()}_DB_PASSWORD": self.passwords[owner] for owner in OWNERS}
        self.client("psql", "--set", "ON_ERROR_STOP=1", "--file", INIT, **secrets_of_owners)

    def run(self) -> None:
        """Start the server of the cluster."""
        settings = f"-c listen_addresses={HOST} -c port={self.port} -c unix_socket_directories='' -c fsync=off"
        settings += " -c ssl=on -c ssl_cert_file=server.pem -c ssl_key_file=server.key" if self.tls else ""
        self._as_user(
            "pg_ctl", "start", "--pgdata", self.data, "--log", self.log, "--wait", "-t", "300", "-o", settings
        )

    def kill(self) -> None:
        """End the server and its children at once, as a power cut does."""
        server = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
        processes = [server, *server.children()]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=60)

    def stop(self) -> None:
        """End the server."""
        if (self.data / "postmaster.pid").exists():
            self._as_user("pg_ctl", "stop", "--pgdata", self.data, "--mode", "immediate")

    def client(self, program: str, *words: str | Path, role: str = SUPERUSER, **environment: str) -> str:
        """Run one of PostgreSQL's clients as a role and return what it prints."""
        known = {"PGHOST": HOST, "PGPORT": str(self.port), "PGUSER": role, "PGPASSWORD": self.passwords[role]}
        if self.tls:
            known |= {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": str(self.ca)}
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

    @property
    def ca(self) -> Path:
        return self.data / "ca.pem"

    def _demand_tls(self) -> None:
        write_certificate(self.data, HOST)
        for file in ("ca.pem", "server.pem", "server.key"):
            if self.user:
                shutil.chown(self.data / file, self.user)
        (self.data / "pg_hba.conf").write_text("hostssl all all all scram-sha-256\n")

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
def postgres_cluster(folder: Path, *, tls: bool = False) -> Iterator[PostgresCluster]:
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
    cluster = PostgresCluster(Path(found).parent, place, "nobody" if root else None, tls)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        if root:
            shutil.rmtree(place, ignore_errors=True)
