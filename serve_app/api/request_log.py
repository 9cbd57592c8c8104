"""The request log: one line of JSON for each request that has ended, never with a prompt unless it is asked for.

Each ingress replica writes its own files among Serve's logs, where Ray's dashboard shows them:
`requests_REPLICA.jsonl`, and `refused_REPLICA.jsonl` of those who were turned away before anybody was known. These may
send as many requests as they like, so their lines have a small file of their own: none of them pushes out a line from
which a bill is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import reduce
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

import orjson

from router.registry import Profile
from serve_app.api.bill import unbilled_leg
from serve_app.api.request_record import RequestRecord, key_id_of
from serve_app.engine.interface import Leg
from sustainability.footprint import Footprint

_MOST_BYTES: Final = 100_000_000
_FILES: Final = 5
"""Size of a file, bytes, and older ones that are kept: the defaults of Ray's own logs are of this order."""
_MOST_REFUSED_BYTES: Final = 5_000_000
"""Size of the file of those who were turned away, bytes, about 30,000 lines; one older file is kept."""
_FROM_METRICS: Final = (*("prompt_tokens", "finish_reason", "ttft_ms", "queue_ms", "tokens_per_sec"),)
WHOLE: Final = "whole"
ESTIMATED: Final = "estimated"
"""`counted` of a line: engines have told all that they did; or what one did since its last token is estimated, or what
a replica did that was lost is known as of its last token."""
_PROMPTS: Final = ("prompt", "messages", "input", "instructions", "system")
"""Fields of a body that are the prompt, of any of the routes."""


class RequestLog:
    """Writes the lines of one ingress replica.

    Args:
        folder: of the files.
        replica: name of the replica.
        profile: price and watts of the tiers.
        now: the time, with its zone.
    """

    def __init__(
        self, folder: Path, replica: str, profile: Profile, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._profile = profile
        self._now = now
        self._requests = _lines(folder / f"requests_{replica}.jsonl", _MOST_BYTES, _FILES)
        self._refused = _lines(folder / f"refused_{replica}.jsonl", _MOST_REFUSED_BYTES, 1)

    def ended(self, record: RequestRecord) -> None:
        """Write the line of a request that has ended."""
        log = self._refused if record.stranger else self._requests
        line = refused_line_of(record) if record.stranger else line_of(record, self._profile)
        line = {"time": self._now().isoformat(timespec="milliseconds"), **line}
        log.info("%s", orjson.dumps(line).decode())


def _lines(path: Path, most_bytes: int, older: int) -> logging.Logger:
    """Return a logger that writes each message as a line of a file, with so many older ones beside it."""
    # Not among Python's named loggers: nobody else writes here, and the lines go nowhere else.
    lines = logging.Logger("power_lever.requests")
    lines.addHandler(RotatingFileHandler(path, maxBytes=most_bytes, backupCount=older, encoding="utf-8", delay=True))
    return lines


def refused_line_of(record: RequestRecord) -> dict[str, Any]:
    """Return what is logged of a request that was turned away before anybody was known, less the time."""
    return {
        "request_id": record.request_id,
        "route": record.route,
        "client": record.client,
        "outcome": record.code,
    }


def line_of(record: RequestRecord, profile: Profile) -> dict[str, Any]:
    """Return what is logged of a request, less the time. Fields that it did not come to are null.

    Args:
        record: of the request.
        profile: price and watts of what is in no `metrics`.
    """
    plan, metrics = record.plan, record.metrics or {}
    took = _took(record, profile)
    if record.metrics is None and record.tokens.prompt:
        took["prompt_tokens"] = record.tokens.prompt
    if record.metrics is None and record.delivered is not None and record.delivered.first_token_s is not None:
        took["ttft_ms"] = round((record.delivered.first_token_s - record.arrived_s) * 1000, 3)
    line = {
        "request_id": record.request_id,
        "route": record.route,
        "key": key_id_of(record),
        "key_name": record.key.name if record.key else None,
        "outcome": record.code,
        "replicas_lost": len(record.lost),
        "mode": plan.mode if plan else None,
        "goal": record.goal,
        "power": plan.power if plan else None,
        "tier": plan.tier if plan else None,
        "escalation": record.escalated.metrics() if record.escalated else None,
        "entry": plan.entry.name if plan else None,
        "category": plan.classification.category if plan else None,
        "total_ms": round((record.ended_s - record.arrived_s) * 1000, 3),
        **{name: metrics.get(name) for name in _FROM_METRICS},
        **took,
        "energy_source": metrics.get("energy", {}).get("source"),
        "agent_usd": None if record.agent_usd is None else round(record.agent_usd, 9),
    }
    return line if record.prompt is None else line | {"prompt": record.prompt}


def _took(record: RequestRecord, profile: Profile) -> dict[str, Any]:
    """Return what engines did for a request: its parts, and their sums; null if no engine did anything."""
    metrics, unbilled = record.metrics, [unbilled_leg(leg, profile) for leg in record.unbilled]
    legs = [leg for leg, _ in unbilled]
    parts = [used for _, used in unbilled]
    tokens, busy_s = sum(leg.completion_tokens for leg in record.unbilled), sum(leg.busy_s for leg in record.unbilled)
    if metrics is not None:
        legs = [*_legs(record, metrics), *legs]
        figures = (metrics["energy"]["wh"], metrics["water_l"], metrics["co2_g"], metrics["cost_usd"])
        parts.append(Footprint(*figures))
        # What led to no part of the answer is in no count of the client's.
        tokens, busy_s = record.completion_tokens, busy_s + metrics["busy_s"]
    if not legs:
        nothing = ("completion_tokens", "busy_s", "energy_wh", "water_l", "co2_g", "cost_usd", "counted")
        return {"legs": [], **dict.fromkeys(nothing)}
    used = reduce(Footprint.__add__, parts)
    return {
        "completion_tokens": tokens,
        "busy_s": round(busy_s, 6),
        "energy_wh": used.energy_wh,
        "water_l": used.water_l,
        "co2_g": used.co2_g,
        "cost_usd": used.cost_usd,
        "counted": ESTIMATED if record.estimated or record.lost else WHOLE,
        "legs": legs,
    }


def _legs(record: RequestRecord, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a whole answer; an answer of `/v1` has one."""
    if metrics["legs"] or record.plan is None:
        return list(metrics["legs"])
    plan = record.plan
    figures = {"busy_s": metrics["busy_s"], "energy_wh": metrics["energy"]["wh"], "cost_usd": metrics["cost_usd"]}
    leg = Leg(plan.tier, plan.entry.name, record.completion_tokens, metrics["busy_s"], "done")
    return [leg._asdict() | figures]


def prompt_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a checked body that hold what was asked."""
    return {name: body[name] for name in _PROMPTS if name in body}
