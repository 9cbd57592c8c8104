"""The manifests for KubeRay: Kubernetes' schemas accept them, and Ray reads from them the nodes that the tiers need."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.serve.schema import ServeDeploySchema

from cluster.profiles.reading import load_profile
from serve_app.check_config import check
from serve_app.config import Limits
from tests.support.manifests import ROOT, demand_of, document, documents, gpu_tiers, nodes_added, pinned, serve_env

SERVICE, MODELS = "cluster/deploy/kuberay/rayservice.yaml", "cluster/deploy/kuberay/seed_weights.yaml"
CRD = ROOT.parent / "shared/data/ray.io_rayservices.yaml"


def closed(schema: Any) -> Any:
    """Return a CRD's schema that refuses unknown fields, which Kubernetes would drop silently."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    is_object = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if is_object and not schema.get("x-kubernetes-preserve-unknown-fields"):
        inner.setdefault("additionalProperties", False)
    return inner


@pytest.fixture(scope="module")
def crd() -> Any:
    """The schema of a RayService, unknown fields forbidden."""
    if not CRD.is_file():
        pytest.skip(f"KubeRay's RayService CRD is not at {CRD}")
    loaded = yaml.load(CRD.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (schema,) = [
        version["schema"]["openAPIV3Schema"] for version in loaded["spec"]["versions"] if version["name"] == "v1"
    ]
    return closed(schema)


def problems(schema: Any, instance: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in Draft202012Validator(schema).iter_errors(instance)]


def spec() -> Any:
    return document(SERVICE)["spec"]


def cluster() -> Any:
    return spec()["rayClusterConfig"]


def groups() -> dict[str, Any]:
    return {group["groupName"]: group for group in cluster()["workerGroupSpecs"]}


def pods() -> Iterator[tuple[str, Any]]:
    yield "head", cluster()["headGroupSpec"]["template"]["spec"]
    for name, group in groups().items():
        yield name, group["template"]["spec"]


def environment(pod: Any) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}


def test_the_ray_service_fits_kuberays_schema_without_unknown_fields(crd: Any) -> None:
    assert problems(crd, document(SERVICE)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: spec.update(servConfig=""), "servConfig"),
        (lambda spec: spec["rayClusterConfig"]["autoscalerOptions"].update(version="v3"), "v3"),
        (lambda spec: spec["rayClusterConfig"]["workerGroupSpecs"][0].pop("maxReplicas"), "maxReplicas"),
        (
            lambda spec: spec["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0].update(envs=[]),
            "envs",
        ),
    ],
)
def test_the_schema_finds_wrong_fields(crd: Any, change: Any, message: str) -> None:
    wrong = document(SERVICE)
    change(wrong["spec"])
    assert any(message in problem for problem in problems(crd, wrong))


def test_the_seeding_job_and_the_claim_fit_the_pod_and_volume_schemas_inside_kuberays(crd: Any) -> None:
    claim, job = documents(MODELS)
    template = crd["properties"]["spec"]["properties"]["rayClusterConfig"]["properties"]["headGroupSpec"]["properties"]
    pod = template["template"]["properties"]["spec"]
    ephemeral = pod["properties"]["volumes"]["items"]["properties"]["ephemeral"]["properties"]
    assert problems(pod, job["spec"]["template"]["spec"]) == []
    assert problems(ephemeral["volumeClaimTemplate"]["properties"]["spec"], claim["spec"]) == []


def node_types() -> dict[str, Any]:
    """Return the node types that Ray's autoscaler reads from the RayCluster."""
    ray_cluster = {"metadata": {"name": "power-lever", "namespace": "default"}, "spec": cluster()}
    found: dict[str, Any] = _derive_autoscaling_config_from_ray_cr(ray_cluster)["available_node_types"]
    return found


@pytest.mark.parametrize("name", ["eco", "balanced", "performance", "ultra"])
def test_rays_autoscaler_would_add_pods_for_all_replicas_of_a_tier(name: Any) -> None:
    tier = gpu_tiers()[name]
    added, unplaced = nodes_added(node_types(), "headgroup", 100, [demand_of(tier)] * tier.replicas.max)
    assert unplaced == []
    ((group, count),) = added.items()
    assert count == groups()[group]["maxReplicas"] == tier.replicas.max
    assert node_types()[group]["resources"][f"accelerator_type:{tier.gpu}"] == 1
    assert groups()[group]["template"]["spec"]["nodeSelector"] == {"ray.io/accelerator-type": tier.gpu}
    assert groups()[group]["minReplicas"] == tier.replicas.min


def test_only_pods_without_a_gpu_always_run() -> None:
    types = node_types()
    assert types["headgroup"]["resources"]["CPU"] == 0
    assert {name for name, group in types.items() if group["min_workers"]} == {"ingress"}
    assert "GPU" not in types["ingress"]["resources"]
    added, unplaced = nodes_added(types, "headgroup", 100, [{"CPU": 0.1}, {"CPU": 0.1}])
    assert (added, unplaced) == ({"ingress": 1}, [])


def test_the_cluster_runs_the_pinned_ray_and_its_second_autoscaler() -> None:
    assert cluster()["rayVersion"] == pinned("ray")
    assert cluster()["enableInTreeAutoscaling"] is True
    assert cluster()["autoscalerOptions"]["version"] == "v2"
    assert {name for name, pod in pods() if pod["restartPolicy"] != "Never"} == set()


def test_every_node_has_the_environment_of_the_image_and_the_models_folder_at_one_path() -> None:
    for name, pod in pods():
        own = {} if name == "head" else {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "900"}
        assert environment(pod) == {"MODELS_DIR": "/models"} | own, name
    claim, job = documents(MODELS)
    for pod in (*dict(pods()).values(), job["spec"]["template"]["spec"]):
        (container,) = pod["containers"]
        assert {"name": "models", "mountPath": "/models"} in container["volumeMounts"]
        assert {"name": "models", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in pod["volumes"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert {"name": "MODELS_DIR", "value": "/models"} in job["spec"]["template"]["spec"]["containers"][0]["env"]


def test_the_image_has_the_environment_of_serve_env_and_our_haproxy() -> None:
    text = (ROOT / "cluster/deploy/docker/Dockerfile").read_text().replace("\\\n", " ")
    variables = [pair for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for pair in line.split()]
    image = dict(pair.split("=", 1) for pair in variables)
    assert image.items() >= serve_env().items()
    assert image["RAY_SERVE_HAPROXY_BINARY_PATH"] == "/usr/local/bin/power-lever-haproxy"


def test_all_nodes_and_the_seeding_job_run_one_image() -> None:
    _, job = documents(MODELS)
    images = {pod["containers"][0]["image"] for _, pod in pods()}
    assert images == {job["spec"]["template"]["spec"]["containers"][0]["image"]} == {PLACEHOLDER}


PLACEHOLDER = "REGISTRY/power-lever@sha256:CHANGE_ME"
"""Kubernetes refuses it (InvalidImageName), so a manifest that was not filled in starts nothing."""
BY_DIGEST = re.compile(r"[a-z0-9.:/-]+@sha256:[0-9a-f]{64}")


def test_the_documented_command_names_the_image_by_digest_in_every_pod(tmp_path: Path) -> None:
    readme = (ROOT / "cluster/deploy/README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r'^sed -i "(.*)" cluster/deploy/kuberay/\*\.yaml$', readme, re.MULTILINE)
    image = f"registry.example:5000/power-lever@sha256:{'0a' * 32}"
    for path in (SERVICE, MODELS):
        done = subprocess.run(
            ["sed", command.replace("$IMAGE", image)],
            input=(ROOT / path).read_text(encoding="utf-8"),
            capture_output=True,
            text=True,
            check=True,
        )
        images = re.findall(r"image: (?:&image )?([^*\s]\S*)", done.stdout)
        assert images
        assert all(BY_DIGEST.fullmatch(found) for found in images), images


def every_pod() -> Iterator[tuple[str, Any]]:
    """The cluster's pods and the seeding job's."""
    yield from pods()
    _, job = documents(MODELS)
    yield "seed", job["spec"]["template"]["spec"]


def test_no_pod_runs_as_root_or_may_become_root() -> None:
    for name, pod in every_pod():
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "fsGroup": 1000,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }, name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }, name
    autoscaler = cluster()["autoscalerOptions"]
    assert autoscaler["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


GIB = 2**30
PROCESSES_GIB = 8
"""Ray's processes on the node, the replica, and vLLM's engine core with the worker of one GPU."""
WORKER_GIB = 4
"""A further worker of a tensor-parallel engine."""


def gib(quantity: str) -> int:
    return int(re.fullmatch(r"(\d+)Gi", quantity)[1])  # type: ignore[index]


def shared_memory_gib(pod: Any) -> int:
    (container,) = pod["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"
    return gib(volume["emptyDir"]["sizeLimit"])


def test_every_node_has_shared_memory_for_rays_objects_and_a_tensor_parallel_engines_messages() -> None:
    for name, pod in pods():
        group = groups().get(name, cluster()["headGroupSpec"])
        objects_gib = int(group["rayStartParams"]["object-store-memory"]) / GIB
        assert shared_memory_gib(pod) >= objects_gib + 2, name


def test_every_pod_has_as_much_memory_as_it_may_use() -> None:
    for name, pod in every_pod():
        resources = pod["containers"][0]["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"], name


@pytest.mark.parametrize("name", ["eco", "balanced", "performance", "ultra"])
def test_a_gpu_pod_holds_the_weights_of_its_tier_beside_its_processes(name: Any) -> None:
    tier, models = gpu_tiers()[name], load_profile("gpu").models
    (pod,) = [pod for _, pod in pods() if pod.get("nodeSelector") == {"ray.io/accelerator-type": tier.gpu}]
    drafts = [entry.speculation.draft if entry.speculation else None for entry in tier.chain]
    weights_gb = max(
        sum(models[model].size_gb for model in (entry.target, draft) if model)
        for entry, draft in zip(tier.chain, drafts, strict=True)
    )
    further = max(1, int(tier.gpus)) - 1
    needed_gib = weights_gb * 1e9 / GIB + PROCESSES_GIB + WORKER_GIB * further + shared_memory_gib(pod)
    assert gib(pod["containers"][0]["resources"]["limits"]["memory"]) >= needed_gib


def test_a_stranger_cannot_run_code_on_the_cluster() -> None:
    assert cluster()["authOptions"] == {"mode": "token"}


def test_a_pod_that_stops_has_time_to_finish_the_longest_streams() -> None:
    longest_drain_s = max(tier.drain_s for tier in gpu_tiers().values())
    longest_start_s = max(tier.cold_start_s for tier in gpu_tiers().values())
    for name, pod in pods():
        if name != "head":
            # Serve stops a replica its `drain_s` before the drain's end; until then another one may start.
            drain_s = float(environment(pod)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
            assert drain_s >= longest_drain_s + longest_start_s
            assert pod["terminationGracePeriodSeconds"] > drain_s


def test_an_upgrade_keeps_the_old_cluster_for_as_long_as_a_request_may_take() -> None:
    assert spec()["upgradeStrategy"] == {"type": "NewCluster"}
    assert spec()["rayClusterDeletionDelaySeconds"] >= Limits().request_timeout_s


def test_probes_ask_ray_for_life_and_serves_proxy_for_readiness() -> None:
    for name, pod in pods():
        (container,) = pod["containers"]
        assert container["livenessProbe"]["httpGet"] == {"path": "/api/healthz", "port": 52365}
        ready = {"path": "/api/healthz", "port": 52365} if name == "head" else {"path": "/-/healthz", "port": 8000}
        assert container["readinessProbe"]["httpGet"] == ready


def test_the_service_starts_what_serve_config_starts_with_the_gpu_profile(tmp_path: Path) -> None:
    served, shipped = yaml.safe_load(spec()["serveConfigV2"]), document("serve_config.yaml")
    assert shipped["applications"][0]["args"].pop("profile") == "auto"
    assert served["applications"][0]["args"].pop("profile") == "gpu"
    assert served["applications"][0]["args"].pop("auth")["mode"] == "keys"
    assert served["http_options"].pop("host") == "0.0.0.0"
    assert shipped["http_options"].pop("host") == "127.0.0.1"
    assert served == shipped


def test_serve_and_the_application_accept_the_services_config(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(spec()["serveConfigV2"])
    ServeDeploySchema.model_validate(yaml.safe_load(spec()["serveConfigV2"]))
    keys = application_args()["auth"]["keys_file"]
    # The secret is on the cluster's pods, not here.
    assert check(path) == [
        f"{path}: power-lever: valid with profile gpu",
        f"warning: auth.keys_file: {keys}: cannot be read: No such file or directory",
    ]


def application_args() -> Any:
    return yaml.safe_load(spec()["serveConfigV2"])["applications"][0]["args"]


def test_every_pod_mounts_the_secret_with_the_keys_as_a_folder_that_changes_with_it() -> None:
    keys_file = Path(application_args()["auth"]["keys_file"])
    for _, pod in pods():
        [volume] = [volume for volume in pod["volumes"] if "secret" in volume]
        assert volume["secret"]["secretName"] == "power-lever-keys"
        assert volume["secret"]["defaultMode"] & 0o007 == 0, "nobody else in the pod may read it"
        [mount] = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == volume["name"]]
        assert mount == {"name": volume["name"], "mountPath": str(keys_file.parent), "readOnly": True}
    assert keys_file.name == "keys.json", "as the command in cluster/deploy/README.md names it in the secret"
    command = "kubectl create secret generic power-lever-keys --from-file=keys.json"
    assert command in (ROOT / "cluster/deploy/README.md").read_text(encoding="utf-8")
