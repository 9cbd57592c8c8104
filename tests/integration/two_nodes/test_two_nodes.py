"""One data plane on every node: what the manifests' probes ask, and a client behind any node's HAProxy."""

from __future__ import annotations

import json

from tests.integration.two_nodes.conftest import HEAD, HTTP_PORT, WORKER, TwoNodes
from tests.support.manifests import documents

HAPROXYS_OWN_PORTS = (8404, 9101)
PROMPT = json.dumps({"prompt": "hi stub:tokens=3", "mode": "manual", "power": 10})
POST = ("--header", "content-type: application/json", "--data", PROMPT)


def test_kuberays_readiness_probe_finds_the_workers_proxy(two_nodes: TwoNodes) -> None:
    [service] = documents("cluster/deploy/kuberay/rayservice.yaml")
    groups = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    for group in groups:
        [container] = group["template"]["spec"]["containers"]
        probe = container["readinessProbe"]["httpGet"]
        assert two_nodes.worker.curl(f"http://{WORKER}:{probe['port']}{probe['path']}")[0] == 200


def test_the_proxy_of_either_node_answers_from_the_ingress_on_the_worker(two_nodes: TwoNodes) -> None:
    for node, address in ((two_nodes.worker, WORKER), (two_nodes.head, HEAD)):
        status, body = node.curl(f"http://{address}:{HTTP_PORT}/api/inference", *POST)
        assert (status, body.count('"type":"token"')) == (200, 3)
        assert '"type":"done"' in body


def test_skypilots_readiness_probe_finds_replicas(two_nodes: TwoNodes) -> None:
    status, body = two_nodes.worker.curl(f"http://localhost:{HTTP_PORT}/-/routes")
    assert (status, json.loads(body)) == (200, {"/": "power-lever"})


def test_statistics_metrics_and_commands_of_haproxy_stay_on_their_node(two_nodes: TwoNodes) -> None:
    for port, path in zip(HAPROXYS_OWN_PORTS, ("/stats", "/metrics"), strict=True):
        assert two_nodes.worker.curl(f"http://127.0.0.1:{port}{path}")[0] == 200
        assert two_nodes.head.curl(f"http://{WORKER}:{port}{path}")[0] == 0
