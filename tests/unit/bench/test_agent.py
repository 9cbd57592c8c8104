"""The figures of the agent's benchmark, from invented samples; and its stand-in for the Messages API."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from bench.agent import PREFIXES, Difference, Sample, Variant, arguments, request, row, within_noise
from bench.load.claude_api import message_events
from serve_app.config import load_config


def samples(
    off: list[float], again: list[float], on: list[float], not_asked: list[float] | None = None
) -> dict[Variant, Sample]:
    return {"off": Sample(off), "off again": Sample(again), "on": Sample(on), "not asked": Sample(not_asked or on)}


def test_the_agent_is_measured_against_both_runs_without_it() -> None:
    figures = row(1, samples([10.0, 20.0, 30.0], [12.0, 22.0, 32.0], [31.0, 41.0, 51.0], [30.0, 40.0, 50.0]))
    assert figures["off_ttft_p50_ms"] == 21
    assert figures["on_ttft_p50_ms"] == 41
    assert figures["added_ttft_p50_ms"] == 20
    assert figures["noise_p50_ms"] == 2
    assert figures["added_in_process_p50_ms"] == 1
    assert figures["answers"] == 3


def test_the_interval_holds_the_difference_and_is_the_same_every_time() -> None:
    ours, theirs = [float(value % 7) + 1 for value in range(40)], [float(value % 7) for value in range(40)]
    first, second = Difference.of(ours, theirs), Difference.of(ours, theirs)
    assert first == second
    assert first.low_ms <= first.ms <= first.high_ms


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, True), (-5.0, True), (20.0, False)])
def test_a_difference_beyond_that_of_two_equal_runs_is_not_noise(shift: float, verdict: bool) -> None:
    base = [float(value % 11) for value in range(66)]
    assert within_noise(row(1, samples(base, base[::-1], [value + shift for value in base]))) is verdict


def test_the_variants_differ_in_the_agent_only_and_are_valid() -> None:
    for agent in ({"mode": "off"}, {"mode": "single_shot", "base_url": "http://127.0.0.1:1"}):
        config = load_config(arguments(agent), {}, lambda: ("local", ""))
        assert config.agent.mode == agent["mode"]
    assert arguments({}) | {"agent": None} == arguments({"mode": "off"}) | {"agent": None}


def test_all_variants_get_the_same_request_and_all_but_one_with_reasoning() -> None:
    asked = {variant: request(8000, variant, 3) for variant in PREFIXES}
    assert [one.path for one in asked.values()] == [
        "/api/inference",
        "/again/api/inference",
        "/agent/api/inference",
        "/agent/api/inference",
    ]
    assert [one.body["reasoning"] for one in asked.values()] == [True, True, True, False]
    assert len({json.dumps(one.body | {"reasoning": None}) for one in asked.values()}) == 1


def test_the_fake_messages_api_streams_like_the_real_one() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "Because it is so."},
        {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}},
    ]
    raw = list(message_events("m", blocks, "tool_use", {"input_tokens": 5, "output_tokens": 6}, piece=6))
    events = [json.loads(event.split(b"\ndata: ")[1]) for event in raw]
    kinds = [kind for kind, _ in itertools.groupby(event["type"] for event in events)]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", "ping", *block, *block, "message_delta", "message_stop"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Because it is so."
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"a": 1}
