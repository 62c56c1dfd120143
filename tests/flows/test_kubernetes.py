"""A real Prefect server with the Kubernetes pool: it takes all deployments; runs become valid jobs."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from flows.record.home import Home
from flows.servers import local_servers
from flows.servers.password import CLIENT

TOP = Path(__file__).parents[2]
MANIFESTS = TOP / "docker" / "kubernetes"
FILES = (TOP / "prefect.yaml", *TOP.glob("wings/*/prefect.yaml"))
DEPLOYMENTS = [one["name"] for file in FILES for one in yaml.safe_load(file.read_text())["deployments"]]

pytestmark = pytest.mark.nightly


async def job_of(pool: WorkPool, deployment: DeploymentResponse, run: FlowRun) -> dict[str, Any]:
    """Return the job that Prefect's worker would make of a run."""
    async with get_client() as client:
        configuration = await KubernetesWorkerJobConfiguration.from_template_and_values(
            base_job_template=pool.base_job_template, values=deployment.job_variables, client=client
        )
    configuration.prepare_for_flow_run(run, deployment=deployment)
    return configuration.job_manifest


def test_run_of_every_deployment_becomes_a_valid_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)  # the server of other tests has a pool of this name
    monkeypatch.setenv("PREFECT_HOME", "")  # restored at the end
    with local_servers.prefect_server(Home(tmp_path), 0) as url:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path}
        server = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: os.environ[CLIENT]}
        (worker,) = yaml.safe_load_all((MANIFESTS / "worker.yaml").read_text())
        (first,) = worker["spec"]["template"]["spec"]["initContainers"]
        deploying = ["sh", "-euc", first["command"][-1].replace("/work-pool/", f"{MANIFESTS}/")]  # of this checkout
        for _ in range(2):  # a restarted worker repeats it
            done = subprocess.run(deploying, cwd=TOP, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        with temporary_settings(server), get_client(sync_client=True) as client:
            pool = client.read_work_pool("gauntlet")
            assert pool.type == "kubernetes"
            for deployment in client.read_deployments():
                run = client.create_flow_run_from_deployment(deployment.id)
                job = asyncio.run(job_of(pool, deployment, run))
                (container,) = job["spec"]["template"]["spec"]["containers"]
                given = {one["name"]: one["value"] for one in container["env"]}
                assert given["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
                assert given["PREFECT__FLOW_RUN_ID"] == str(run.id)
                assert container["args"][0] == "prefect"
                kubernetes_validate.validate(job, kubernetes_validate.latest_version())
            assert sorted(one.name for one in client.read_deployments()) == sorted(DEPLOYMENTS)
