"""Prefect, MLflow, PostgreSQL and an object store on this host, each of which can be killed and started again."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("tests", "tests/wings/machines")]
from free_ports import free_port
from object_server import BUCKET, CREDENTIALS, ObjectServer, object_server
from postgres_cluster import PostgresCluster, postgres_cluster

from flows.servers.local_servers import launch, stop, wait_until_up
from flows.servers.ports import HOST
from wings.platform.prepare_databases import MLFLOW, PREFECT

ADDRESS = f"s3://{BUCKET}/shared"
FRONT = """
import asyncio, sys

async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()

async def serve(reader, writer):
    behind = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(pump(reader, behind[1]), pump(behind[0], writer), return_exceptions=True)

async def main():
    await (await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))).serve_forever()

asyncio.run(main())
"""
"""What listens at the store's address. The object server behind it keeps everything in memory, as another its disk."""


@dataclass
class Platform:
    """The servers, each of which can be killed and started again at its address."""

    folder: Path
    cluster: PostgresCluster
    objects: ObjectServer
    ports: dict[str, int] = field(default_factory=lambda: {n: free_port() for n in ("scheduler", "mlflow", "store")})
    running: dict[str, psutil.Popen] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What every command needs to reach them."""
        return CREDENTIALS | {
            "PREFECT_API_URL": f"http://{HOST}:{self.ports['scheduler']}/api",
            "MLFLOW_TRACKING_URI": f"http://{HOST}:{self.ports['mlflow']}",
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self.ports['store']}",
            "AWS_ALLOW_HTTP": "true",
            "GAUNTLET_STORE": ADDRESS,
            "GAUNTLET_HOST_LOCK": str(self.folder / "host.lock"),
        }

    def start(self, name: str) -> None:
        """Start a server, and wait until it responds."""
        if name == "database":
            self.cluster.run()
            return
        port, python = str(self.ports[name]), sys.executable
        words, path = {
            "scheduler": (["-m", "prefect", "server", "start", "--host", HOST, "--port", port], "api/health"),
            "mlflow": (["-m", "mlflow", "server", "--host", HOST, "--port", port, "--workers", "1",
                        "--artifacts-destination", str(self.folder / "artifacts")], "health"),
            "store": (["-c", FRONT, port, str(self.objects.port)], BUCKET),
        }[name]  # fmt: skip
        environment = {**os.environ, PREFECT: self.cluster.address("prefect", driver="asyncpg")}
        environment |= {MLFLOW: self.cluster.address("mlflow"), "PREFECT_HOME": str(self.folder / "prefect")}
        environment |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environment["PATH"] = f"{Path(python).parent}{os.pathsep}{environment['PATH']}"
        log = self.folder / f"{name}.log"
        self.running[name] = launch([python, *words], environment, log)
        wait_until_up(self.running[name], f"http://{HOST}:{port}/{path}", name, log)

    def kill(self, name: str) -> None:
        """End a server and what it has started, at once."""
        if name == "database":
            self.cluster.kill()
            return
        family = [self.running[name], *self.running[name].children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=60)


@contextmanager
def platform(folder: Path) -> Iterator[Platform]:
    """Start all servers; stop them at the end."""
    (folder / "postgres").mkdir()
    with postgres_cluster(folder / "postgres") as cluster, object_server(folder) as objects:
        made = Platform(folder, cluster, objects)
        try:
            for name in made.ports:
                made.start(name)
            yield made
        finally:
            for process in made.running.values():
                stop(process)
