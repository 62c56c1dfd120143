"""Prefect and MLflow on a real PostgreSQL that takes TLS connections alone.

Tables are made once, a run is recorded whole, no file holds a password, a backup is restored, and a server that another
CA has signed is refused.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import psutil
import pytest
from free_ports import free_port
from harness import SHORT, command, journal, latest_report, sets
from postgres_cluster import OWNERS, TLS, PostgresCluster, postgres_cluster, write_certificate

from flows.record.home import Home
from flows.record.journal import everything_sent
from flows.servers.local_servers import launch, stop, wait_until_up
from flows.servers.ports import HOST
from wings.platform.prepare_databases import FIX_TLS, MLFLOW, PREFECT, main

QUICK = (*SHORT, "quantize=[]", "optimize=[]")


pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresCluster]:
    folder = tmp_path_factory.mktemp("postgres")
    with postgres_cluster(folder, tls=True) as cluster, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PGSSLROOTCERT", str(cluster.ca))
        yield cluster


@dataclass
class Platform:
    """A folder with a finished run, the addresses that it was given, and what the two preparations said."""

    folder: Path
    prepared: list[subprocess.CompletedProcess[str]]

    @property
    def home(self) -> Home:
        return Home(self.folder / ".gauntlet")


@pytest.fixture(scope="module")
def platform(cluster: PostgresCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("platform")
    addresses = {PREFECT: cluster.address("prefect", driver="asyncpg"), MLFLOW: cluster.address("mlflow")}
    prepared = prepare_twice(folder, addresses)
    ports = {"prefect": free_port(), "mlflow": free_port()}
    processes = start_servers(folder, addresses, ports)
    try:
        run_model(folder, ports)
        yield Platform(folder, prepared)
    finally:
        for process in processes:
            stop(process)


def prepare_twice(folder: Path, addresses: dict[str, str]) -> list[subprocess.CompletedProcess[str]]:
    """Prepare the databases from two hosts at the same time: what they have in common is the database alone."""
    started = []
    for host in ("one", "two"):
        own = folder / host
        own.mkdir()
        environment = {**os.environ, **addresses, "TMPDIR": str(own), "PREFECT_HOME": str(own)}
        words = [sys.executable, "-m", "wings.platform.prepare_databases"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(words, env=environment, **pipes))  # type: ignore[call-overload]
    outputs = [process.communicate()[0] for process in started]
    return [subprocess.CompletedProcess([], p.returncode, out) for p, out in zip(started, outputs, strict=True)]


def start_servers(folder: Path, addresses: dict[str, str], ports: dict[str, int]) -> list[psutil.Popen]:
    environment = {**os.environ, **addresses, "PREFECT_HOME": str(folder / "prefect")}
    environment |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment |= {"PREFECT_SERVER_API_PORT": str(ports["prefect"])}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    prefect = ["prefect", "server", "start", "--host", HOST, "--port", str(ports["prefect"])]
    mlflow = ["mlflow", "server", "--host", HOST, "--port", str(ports["mlflow"]), "--workers", "1"]
    mlflow += ["--artifacts-destination", str(folder / "artifacts")]
    started = []
    for name, words in {"prefect": prefect, "mlflow": mlflow}.items():
        started.append(launch([sys.executable, "-m", *words], environment, folder / f"{name}.log"))
    for name, process, path in zip(ports, started, ("api/health", "health"), strict=True):
        wait_until_up(process, f"http://{HOST}:{ports[name]}/{path}", name, folder / f"{name}.log")
    return started


def run_model(folder: Path, ports: dict[str, int]) -> None:
    weights = {"w": np.full((16, 4), 0.5, np.float32)}
    text = "m (float[n,16] x) => (float[n,4] y) <float[16,4] w> { y = MatMul(x, w) }"
    onnx.save(onnx_text.model(text, weights), folder / "linear.onnx")
    servers = {"PREFECT_API_URL": f"http://{HOST}:{ports['prefect']}/api"}
    servers["MLFLOW_TRACKING_URI"] = f"http://{HOST}:{ports['mlflow']}"
    done = command(folder, "run", "linear.onnx", *sets(*QUICK), **servers)
    (folder / "run.log").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_two_hosts_that_start_at_once_make_the_tables_once(platform: Platform, cluster: PostgresCluster) -> None:
    assert [done.returncode for done in platform.prepared] == [0, 0], [done.stdout for done in platform.prepared]
    assert [done.stdout.splitlines()[-1] for done in platform.prepared] == [f"ready: {PREFECT}, {MLFLOW}"] * 2
    for database in OWNERS:
        assert cluster.query(database, "SELECT count(*) FROM alembic_version") == "1"


@pytest.mark.nightly
def test_run_is_recorded_whole_in_both_databases(platform: Platform, cluster: PostgresCluster) -> None:
    home = platform.home
    [folder] = home.run_folders()
    assert everything_sent(folder)
    assert json.loads((folder / "sent.json").read_bytes())["refused"] == []
    done = [event for event in journal(folder) if event["op"] == "work_finished"]
    assert cluster.query("prefect", "SELECT state_type FROM flow_run") == "COMPLETED"
    tasks = "SELECT count(*) FROM task_run WHERE state_type = 'COMPLETED'"
    assert cluster.query("prefect", tasks) == str(2 * len(done))  # work and gate
    report = latest_report(home)
    names = cluster.query("mlflow", "SELECT name FROM runs WHERE status = 'FINISHED'").splitlines()
    assert len(names) == 1 + len(report.candidates)
    assert report.run_id in names


@pytest.mark.nightly
def test_password_stands_in_no_log_and_no_record(platform: Platform, cluster: PostgresCluster) -> None:
    files = [*platform.folder.rglob("*"), cluster.log]
    texts = {file: file.read_bytes() for file in files if file.is_file()}
    assert len(texts) > 20
    for secret in cluster.passwords.values():
        assert [file for file, text in texts.items() if secret.encode() in text] == []


def count_rows(cluster: PostgresCluster, database: str) -> dict[str, int]:
    """Return the number of rows of each table."""
    tables = cluster.query(database, "SELECT relname FROM pg_stat_user_tables").splitlines()
    counts = " UNION ALL ".join(f"SELECT '{table} ' || count(*) FROM \"{table}\"" for table in tables)
    return {table: int(count) for table, count in map(str.split, cluster.query(database, counts).splitlines())}


@pytest.mark.nightly
def test_backup_is_restored_whole(platform: Platform, cluster: PostgresCluster, tmp_path: Path) -> None:
    for database in OWNERS:
        copy, file = f"{database}_restored", tmp_path / f"{database}.dump"
        before = count_rows(cluster, database)
        cluster.client("pg_dump", "--format", "custom", "--file", file, database)
        after = count_rows(cluster, database)
        cluster.client("createdb", "--owner", database, copy)
        cluster.client("pg_restore", "--exit-on-error", "--dbname", copy, file)
        restored_rows = count_rows(cluster, copy)
        assert len(before) > 20
        assert restored_rows.keys() == before.keys()
        for table, count in restored_rows.items():  # Prefect's server goes on writing
            assert min(before[table], after[table]) <= count <= max(before[table], after[table]), table
    environment = {**os.environ, "MLFLOW_TRACKING_URI": cluster.address("mlflow_restored", role="mlflow")}
    script = "import mlflow; print(*set(mlflow.search_runs(experiment_names=['linear'])['status']))"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "FINISHED\n"


def refused(code: int) -> str:
    """Prepare the databases, and return the one line of the error.

    In a process of its own, as libpq's TLS crashes a process into which other tests have loaded another OpenSSL.
    """
    words = [sys.executable, "-m", "wings.platform.prepare_databases"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.nightly
def test_wrong_password_and_lost_server_are_one_line(cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cluster.address("mlflow")
    monkeypatch.delenv(PREFECT, raising=False)
    for address, code, words in (
        (right.replace(cluster.passwords["mlflow"], "hidden"), 2, 'password authentication failed for user "mlflow"'),
        (right.replace("/mlflow", "/nowhere"), 2, "nowhere"),
        (right.replace(f":{cluster.port}", f":{free_port()}"), 3, "Connection refused"),
    ):
        monkeypatch.setenv(MLFLOW, address)
        error = refused(code)
        assert words in error
        assert "hidden" not in error


@pytest.fixture
def other_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The certificate of a CA that has not signed the server's, as the one that is trusted."""
    write_certificate(tmp_path, HOST)
    monkeypatch.setenv("PGSSLROOTCERT", str(tmp_path / "ca.pem"))
    return tmp_path / "ca.pem"


@pytest.mark.nightly
@pytest.mark.parametrize(("variable", "driver"), [(PREFECT, "asyncpg"), (MLFLOW, "psycopg2")])
def test_server_that_another_ca_has_signed_is_refused(
    cluster: PostgresCluster, other_ca: Path, monkeypatch: pytest.MonkeyPatch, variable: str, driver: str
) -> None:
    for name in (PREFECT, MLFLOW):
        monkeypatch.delenv(name, raising=False)
    owner = "prefect" if variable == PREFECT else "mlflow"
    right = cluster.address(owner, driver=driver)
    for address, ca, words in (
        (right, other_ca, "certificate verify failed"),
        (right, other_ca.with_name("none.pem"), 'none.pem" does not exist'),
        (right.replace(HOST, "localhost"), cluster.ca, 'does not match host name "localhost"'),
    ):
        monkeypatch.setenv(variable, address)
        monkeypatch.setenv("PGSSLROOTCERT", str(ca))
        error = refused(2)
        assert words in error
        assert error.startswith(f"prepare_databases: {variable}: ")
        assert error.endswith(f"{FIX_TLS}\n")
    monkeypatch.setenv(variable, right.removesuffix(TLS[driver]))
    monkeypatch.setenv("PGSSLMODE", "disable")
    assert "no encryption" in refused(2)


@pytest.mark.nightly
def test_prefect_itself_refuses_a_server_that_another_ca_has_signed(cluster: PostgresCluster, other_ca: Path) -> None:
    environment = {**os.environ, PREFECT: cluster.address("prefect", driver="asyncpg")}
    words = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "CERTIFICATE_VERIFY_FAILED" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variable", "address", "message"),
    [
        (
            PREFECT,
            "postgresql+asyncpg://p@db/prefect?sslmode=verify-full",
            "asyncpg has no option 'sslmode'. Fix: ?ssl=",
        ),
        (PREFECT, "postgresql+asyncpg://p@db/prefect?sslrootcert=ca.pem", "in the environment variable PGSSLROOTCERT"),
        (MLFLOW, "postgresql+psycopg2://m@db/mlflow?ssl=verify-full", "psycopg2 has no option 'ssl'. Fix: ?sslmode="),
        (MLFLOW, "", f"no database is named. Fix: set {PREFECT}, {MLFLOW}, or both"),
        (MLFLOW, "sqlite:///x.db", "only PostgreSQL's tables are made ahead of time"),
        (MLFLOW, "nothing", "not an address. Fix: postgresql+DRIVER://USER:PASSWORD@HOST/DATABASE"),
    ],
)
def test_address_or_option_that_is_not_of_its_driver_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, address: str, message: str
) -> None:
    for name in (PREFECT, MLFLOW):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, address)
    assert main() == 2
    assert message in capsys.readouterr().err
