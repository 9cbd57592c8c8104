"""The planner against Ray: which card each replica of a history gets, and the GPUs of a running cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from cluster.planner.packing import WHOLE, allocate
from cluster.planner.plan import plan
from cluster.planner.render import render
from cluster.planner.supply import parse

CARDS = 3
# Best fit (not first fit), ties, whole cards, a stop that leaves parts, two cards at once.
HISTORY = [
    ("start", "a", 40),
    ("start", "b", 55),  # beside a, not on a free card
    ("start", "c", 45),
    ("start", "d", 50),  # beside c
    ("start", "e", 100),
    ("stop", "b", 0),
    ("start", "f", 20),  # best fit: 5 and 60 are left
    ("stop", "a", 0),
    ("stop", "f", 0),
    ("stop", "e", 0),
    ("start", "g", 200),
    ("stop", "c", 0),
    ("start", "h", 30),
]
SCRIPT = """
import json, os, subprocess, sys, time
import ray

cards, history = json.loads(sys.argv[1])
ray.init(
    num_cpus=2, num_gpus=cards, resources={"accelerator_type:L4": 1}, include_dashboard=False, log_to_driver=False
)
environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
command = [sys.executable, "-m", "serve_app", "profile"]
profile = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

@ray.remote(num_cpus=0)
class Replica:
    def cards(self):
        return sorted(int(card) for card in ray.get_gpu_ids())

running, given = {}, {}
for action, name, demand in history:
    if action == "start":
        gpus = demand // 100 if demand >= 100 else demand / 100
        running[name] = Replica.options(num_gpus=gpus).remote()
        given[name] = ray.get(running[name].cards.remote(), timeout=120)
    else:
        before = ray.available_resources().get("GPU", 0.0)
        ray.kill(running.pop(name))
        while ray.available_resources().get("GPU", 0.0) <= before:
            time.sleep(0.1)
print(json.dumps({"given": given, "profile": profile}))
"""


@pytest.fixture(scope="module")
def from_ray() -> dict[str, Any]:
    """Of one small cluster: the cards that replicas got, and the profile for its GPUs."""
    argument = json.dumps([CARDS, HISTORY])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, argument], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    answered: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answered


def test_ray_gives_each_replica_the_cards_that_the_planner_expects(from_ray: dict[str, Any]) -> None:
    assert from_ray["given"] == expected()


def expected() -> dict[str, list[int]]:
    free = [WHOLE] * CARDS
    on: dict[str, tuple[tuple[int, ...], int]] = {}
    given: dict[str, list[int]] = {}
    for action, name, demand in HISTORY:
        if action == "start":
            cards = allocate(free, demand)
            assert cards is not None, name
            on[name], given[name] = (cards, min(demand, WHOLE)), list(cards)
            change = -min(demand, WHOLE)
        else:
            cards, part = on.pop(name)
            change = part
        for card in cards:
            free[card] += change
    return given


def test_without_gpus_named_the_profile_is_for_those_of_the_running_cluster(from_ray: dict[str, Any]) -> None:
    assert from_ray["profile"] == render(plan(parse(f"L4:{CARDS}")))
