"""What is certain of the Kubernetes manifests without a cluster: valid by its schemas, and fitting together."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import kubernetes_validate
import pytest
import yaml
from prefect.client.schemas.objects import FlowRun
from prefect.utilities.templating import apply_values
from prefect.workers.base import BaseJobConfiguration
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from serving.server import ServerConfig

TOP = Path(__file__).parent.parent
FOLDER = TOP / "docker" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
TEMPLATE: dict[str, Any] = json.loads((FOLDER / "work-pool.json").read_text())
PREFECT: dict[str, Any] = yaml.safe_load((TOP / "prefect.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    one for file in KUSTOMIZATION["resources"] for one in yaml.safe_load_all((FOLDER / file).read_text())
]
VERSIONS = ("1.29", kubernetes_validate.latest_version())
IN_POD_SPEC = ("parallelism", "completions")
"""What Prefect demands in a job's pod, where Kubernetes has no such fields and ignores them."""

each_version = pytest.mark.parametrize("version", VERSIONS)


def job(**variables: Any) -> dict[str, Any]:
    """Return the job that Prefect's worker makes of a flow run, without what Kubernetes ignores."""
    defaults = BaseJobConfiguration._get_base_config_defaults(TEMPLATE["variables"]["properties"])
    values = apply_values(TEMPLATE["job_configuration"], {**defaults, **variables}, remove_notset=True)
    configuration = KubernetesWorkerJobConfiguration(**values)
    configuration.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name="brave-otter", state=None))
    made = copy.deepcopy(configuration.job_manifest)
    for field in IN_POD_SPEC:
        del made["spec"]["template"]["spec"][field]
    return made


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each pod's specification, those of runs included, with a name."""
    yield "run", job()["spec"]["template"]["spec"]
    for one in OBJECTS:
        if one["kind"] == "Deployment":
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


PODS = dict(pods())
(SERVING,) = (one for one in OBJECTS if one["kind"] == "Deployment" and one["metadata"]["name"] == "serving")
each_pod = pytest.mark.parametrize("pod", PODS.values(), ids=PODS)


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


@each_version
@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_manifest_is_valid(one: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(one, version, strict=True)


@each_version
@pytest.mark.parametrize(
    "variables",
    [
        {},
        PREFECT["definitions"]["work_pool"]["job_variables"],
        {"gpus": 2, "node_selector": {"gauntlet": "jetson"}, "cpu": "8", "memory": "32Gi"},
        {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]},
    ],
    ids=["defaults", "deployment", "hardware", "tolerations"],
)
def test_job_of_a_run_is_valid(variables: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(job(**variables), version, strict=True)


def test_job_has_the_hardware_that_was_asked_for() -> None:
    pod = job(gpus=1, cpu="4", memory="16Gi", node_selector={"gauntlet": "jetson"})["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1}
    assert pod["nodeSelector"] == {"gauntlet": "jetson"}


def test_no_two_runs_share_a_node() -> None:
    template = job()["spec"]["template"]
    (rule,) = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


@each_pod
def test_pod_is_one_that_a_restricted_namespace_takes(pod: dict[str, Any]) -> None:
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == 10001  # the image's
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(pod):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim"}
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= allowed


@each_pod
def test_mount_secret_and_image_of_a_pod_exist(pod: dict[str, Any]) -> None:
    images = {f"{one['newName']}:{one['newTag']}" for one in KUSTOMIZATION["images"]}
    names = {one["name"] for one in KUSTOMIZATION["images"]}
    claims = {one["metadata"]["name"] for one in OBJECTS if one["kind"] == "PersistentVolumeClaim"}
    maps = {one["name"] for one in KUSTOMIZATION["configMapGenerator"]}
    secrets = {one["name"] for one in KUSTOMIZATION["secretGenerator"]}
    settings = re.findall(r"^(?:# )?([A-Z][A-Z_]+)=", (FOLDER / "gauntlet.env.example").read_text(), re.MULTILINE)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for volume in volumes.values():
        assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}
        assert volume.get("configMap", {}).get("name") in {None, *maps}
    for container in containers(pod):
        assert container["image"] in images | names
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= set(volumes)
        assert {one["secretRef"]["name"] for one in container.get("envFrom", [])} <= secrets
        for variable in container.get("env", []):
            if "valueFrom" in variable:
                assert variable["valueFrom"]["secretKeyRef"]["name"] in secrets
                assert variable["valueFrom"]["secretKeyRef"]["key"] in settings


def test_runs_have_the_image_of_the_worker() -> None:
    (worker,) = (one for one in KUSTOMIZATION["images"] if one["name"] == PODS["worker"]["containers"][0]["image"])
    assert PODS["run"]["containers"][0]["image"] == f"{worker['newName']}:{worker['newTag']}"


def test_worker_may_do_what_it_does_and_nothing_else() -> None:
    (role,) = (one for one in OBJECTS if one["kind"] == "Role")
    allowed = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    # What prefect_kubernetes calls: jobs are made, deleted and watched; pods are read, with their logs.
    assert {("jobs", verb) for verb in ("create", "delete", "get", "list", "watch")} <= allowed
    assert {("pods", "list"), ("pods", "watch"), ("pods/log", "get")} <= allowed
    assert not {verb for resource, verb in allowed if resource in {"pods", "pods/log"}} - {"get", "list", "watch"}
    assert not {resource for resource, _ in allowed} & {"secrets", "*", "serviceaccounts", "roles"}
    assert not [one for one in OBJECTS if one["kind"] in {"ClusterRole", "ClusterRoleBinding"}]


def test_clients_reach_the_server_of_models_and_no_other_pod() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in OBJECTS if one["kind"] == "NetworkPolicy"}
    assert policies["no-ingress"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    labels = SERVING["spec"]["template"]["metadata"]["labels"]
    assert policies["serving"]["podSelector"]["matchLabels"] == labels
    [[http]] = (rule["ports"] for rule in policies["serving"]["ingress"])
    assert http["port"] in {port["name"] for port in PODS["serving"]["containers"][0]["ports"]}
    assert "Egress" in policies["serving"]["policyTypes"]
    assert all(rule["ports"] for rule in policies["serving"]["egress"])  # a rule without ports allows all of them


def test_drained_node_leaves_a_server_and_lets_the_other_finish() -> None:
    (budget,) = (one["spec"] for one in OBJECTS if one["kind"] == "PodDisruptionBudget")
    assert budget["selector"] == SERVING["spec"]["selector"]
    assert 1 <= budget["minAvailable"] < SERVING["spec"]["replicas"]
    pod = PODS["serving"]
    [_, seconds] = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + ServerConfig().stop_timeout_s


def test_passwords_are_in_the_secret_alone_and_git_ignores_its_file() -> None:
    example = (FOLDER / "gauntlet.env.example").read_text()
    secret = re.compile("PASSWORD|AUTH|TOKEN|SECRET|KEY")
    filled = re.findall(r"^(?:# )?([A-Z][A-Z_]+)=(.+)$", example, re.MULTILINE)
    assert not [name for name, _ in filled if secret.search(name)]
    assert "docker/kubernetes/gauntlet.env" in (TOP / ".gitignore").read_text().split()
