"""Keys through Serve and HAProxy, as the SDKs send them; made, rotated and revoked while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from serve_app.__main__ import main
from tests.support.api import PATIENCE_S, Api

CHAT: dict[str, Any] = {
    "model": "eco",
    "max_tokens": 2,
    "messages": [{"role": "user", "content": "Hi. stub:tokens=2"}],
}
PLACES = 32
KEPT = 4
"""Of eco, at two ingress replicas together."""
ASKS = 20
"""More than enough for a request to have come to each of two replicas: HAProxy takes the one with the fewest."""


class Operator:
    """Runs `power-lever keys` on the application's file."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._path = path
        self._capsys = capsys

    def __call__(self, *arguments: str) -> str:
        """What the command wrote to stdout."""
        assert main(["keys", *arguments, "--file", str(self._path)]) == 0
        return self._capsys.readouterr().out.strip()


@pytest.fixture
def keys(keys_file: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(keys_file, capsys)


def statuses(locked: Api, key: str) -> set[int]:
    """What a key gets, each time on a connection of its own, so that every replica is asked."""
    return {
        httpx.get(f"{locked.base_url}/v1/models", headers={"x-api-key": key}, timeout=PATIENCE_S).status_code
        for _ in range(ASKS)
    }


def chat(locked: Api, key: str) -> httpx.Response:
    """An answer, on a connection of its own."""
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{locked.base_url}/v1/chat/completions", json=CHAT, headers=headers, timeout=PATIENCE_S)


def wait_until(holds: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < PATIENCE_S
        time.sleep(0.1)


def test_a_key_lets_both_sdks_in_until_it_is_revoked_without_a_restart(locked: Api, keys: Operator) -> None:
    key = keys("new", "--name", "sdks", "--scope", "infer")
    wait_until(lambda: statuses(locked, key) == {200})
    with openai.OpenAI(base_url=f"{locked.base_url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S) as gpt:
        assert gpt.chat.completions.create(**CHAT).model == "eco"
    with anthropic.Anthropic(base_url=locked.base_url, api_key=key, max_retries=0, timeout=PATIENCE_S) as claude:
        assert claude.messages.create(**CHAT).model == "eco"
        keys("revoke", "sdks")
        wait_until(lambda: statuses(locked, key) == {401})
        with pytest.raises(anthropic.AuthenticationError):
            claude.messages.create(**CHAT)


def test_a_rotated_key_takes_the_place_of_the_old_one(locked: Api, keys: Operator) -> None:
    old = keys("new", "--name", "rotated", "--scope", "infer")
    new = keys("rotate", "rotated")
    wait_until(lambda: statuses(locked, new) == {200})
    assert statuses(locked, old) == {401}


def test_a_decision_made_at_one_replica_is_seen_by_its_key_and_an_admin_at_any(locked: Api, keys: Operator) -> None:
    alice = keys("new", "--name", "alice", "--scope", "infer")
    bob = keys("new", "--name", "bob", "--scope", "infer")
    admin = keys("new", "--name", "root", "--scope", "admin")
    wait_until(lambda: all(statuses(locked, key) == {200} for key in (alice, bob, admin)))
    asked = locked.post_as("/v1/chat/completions", CHAT, {"authorization": f"Bearer {alice}"})
    path = f"/api/decisions/{asked.headers['x-power-lever-decision']}"
    for key, status in ((alice, 200), (bob, 404), (admin, 200)):
        assert locked.send("GET", path, x_api_key=key).status_code == status
    assert locked.send("GET", path, x_api_key=admin).json()["key"] == alice.split("_")[1]


def test_a_limit_holds_over_both_replicas_and_is_changed_without_a_restart(locked: Api, keys: Operator) -> None:
    key = keys("new", "--name", "limited", "--scope", "infer", "--requests-per-minute", "12")
    wait_until(lambda: statuses(locked, key) == {200})  # what only reads counts nothing
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: chat(locked, key), range(40)))
    let_in = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(let_in) + len(refused) == 40
    if time.monotonic() - began < 60:
        assert len(let_in) == 12
        lefts = sorted(int(answer.headers["x-ratelimit-remaining-requests"]) for answer in let_in)
        assert lefts[0] == 0
        assert lefts[-1] >= 12 - 8  # as many ask at once
    assert {answer.json()["error"]["code"] for answer in refused} == {"rate_limit_exceeded"}
    assert all(0 < int(answer.headers["retry-after"]) <= 62 for answer in refused)
    with openai.OpenAI(base_url=f"{locked.base_url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S) as gpt:
        keys("limits", "limited", "--requests-per-minute", "1")
        wait_until(lambda: chat(locked, key).headers["x-ratelimit-limit-requests"] == "1")
        with pytest.raises(openai.RateLimitError):
            gpt.chat.completions.create(**CHAT)
        keys("limits", "limited", "--requests-per-minute", "none")
        wait_until(lambda: {chat(locked, key).status_code for _ in range(ASKS)} == {200})
        assert gpt.chat.completions.create(**CHAT).model == "eco"


def test_a_stream_at_one_replica_takes_a_slot_at_the_other_until_its_client_leaves(locked: Api, keys: Operator) -> None:
    key = keys("new", "--name", "one-at-a-time", "--scope", "infer", "--max-concurrent", "1")
    wait_until(lambda: statuses(locked, key) == {200})
    words = {"messages": [{"role": "user", "content": "Hi. stub:rate=5"}], "max_tokens": 1500, "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    with httpx.stream(
        "POST", f"{locked.base_url}/v1/chat/completions", json=CHAT | words, headers=headers, timeout=PATIENCE_S
    ) as stream:
        assert stream.status_code == 200
        pieces = stream.iter_bytes()  # kept, as its end would close the connection
        next(pieces)
        # At once, unless the pool is away (no answer for 4 s): then a replica lets its own part in, once.
        wait_until(lambda: {chat(locked, key).status_code for _ in range(ASKS)} == {429})
        claude = anthropic.Anthropic(base_url=locked.base_url, api_key=key, max_retries=0, timeout=PATIENCE_S)
        with claude, pytest.raises(anthropic.RateLimitError):
            claude.messages.create(**CHAT)
    wait_until(lambda: chat(locked, key).status_code == 200)


async def test_a_key_with_more_streams_than_a_tier_has_places_does_not_keep_another_one_waiting(
    locked: Api, keys: Operator, tmp_path: Path
) -> None:
    large, small = (keys("new", "--name", name, "--scope", "infer") for name in ("large", "small"))
    wait_until(lambda: statuses(locked, large) == statuses(locked, small) == {200})
    ends = tmp_path / "ends"
    full = asyncio.Event()
    began: set[int] = set()
    ended: list[int] = []

    async def stream(client: httpx.AsyncClient, number: int) -> None:
        body = {"prompt": f"stub:rate=2 stub:until={ends}", "mode": "manual", "power": 5, "max_tokens": 2000}
        async with client.stream("POST", "/api/inference", json=body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if '"type":"token"' in line:
                    began.add(number)
                if len(began) >= PLACES - KEPT:
                    full.set()
        ended.append(number)

    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(
        base_url=locked.base_url, headers={"x-api-key": large}, timeout=PATIENCE_S, limits=limits
    ) as client:
        streams = [asyncio.ensure_future(stream(client, number)) for number in range(PLACES + 12)]
        async with asyncio.timeout(PATIENCE_S):
            await full.wait()
        answer = await asyncio.to_thread(locked.post_as, "/v1/chat/completions", CHAT, {"x-api-key": small})
        assert answer.status_code == 200
        assert (len(began), ended) == (PLACES - KEPT, [])
        ends.touch()
        await asyncio.gather(*streams)
    assert len(ended) == PLACES + 12


def test_without_a_key_health_is_open_and_all_else_is_not(locked: Api) -> None:
    assert locked.get("/healthz").json() == {"status": "ok"}
    assert locked.get("/").status_code == 200
    for path in ("/api/tiers", "/metrics", "/v1/models"):
        refused = locked.get(path)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("given", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_foreign_web_pages_are_kept_out_behind_haproxy_too(api: Api, given: dict[str, str]) -> None:
    refused = api.post_as("/v1/chat/completions", CHAT, given)
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        (421, "host_not_allowed") if "host" in given else (403, "origin_not_allowed")
    )
