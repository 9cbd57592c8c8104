"""The request log: one line of JSON for each request that has ended, never with a prompt unless it is asked for.

Each ingress replica writes its own file among Serve's logs, `requests_REPLICA.jsonl`, where Ray's dashboard shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

import orjson

from serve_app.api.request_record import RequestRecord, key_id_of

_MOST_BYTES: Final = 100_000_000
_FILES: Final = 5
"""Size of a file, bytes, and older ones that are kept: the defaults of Ray's own logs are of this order."""
_FROM_METRICS: Final = (
    *("prompt_tokens", "completion_tokens", "finish_reason", "ttft_ms", "queue_ms", "tokens_per_sec", "busy_s"),
    *("water_l", "co2_g", "cost_usd"),
)
_PROMPTS: Final = ("prompt", "messages", "input", "instructions", "system")
"""Fields of a body that are the prompt, of any of the routes."""


class RequestLog:
    """Writes the lines of one ingress replica.

    Args:
        folder: of the file.
        replica: name of the replica.
        now: the time, with its zone.
    """

    def __init__(self, folder: Path, replica: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.path = folder / f"requests_{replica}.jsonl"
        self._now = now
        # Not among Python's named loggers: nobody else writes here, and the lines go nowhere else.
        self._logger = logging.Logger("power_lever.requests")
        self._logger.addHandler(
            RotatingFileHandler(self.path, maxBytes=_MOST_BYTES, backupCount=_FILES, encoding="utf-8", delay=True)
        )

    def ended(self, record: RequestRecord) -> None:
        """Write the line of a request that has ended."""
        line = {"time": self._now().isoformat(timespec="milliseconds"), **line_of(record)}
        self._logger.info("%s", orjson.dumps(line).decode())


def line_of(record: RequestRecord) -> dict[str, Any]:
    """Return what is logged of a request, less the time. Fields that it did not come to are null."""
    plan, metrics, delivered = record.plan, record.metrics or {}, record.delivered
    energy = metrics.get("energy", {})
    took = {name: metrics.get(name) for name in _FROM_METRICS}
    if record.metrics is not None:
        took["completion_tokens"] = record.completion_tokens  # of all answers together
    elif record.tokens.prompt:
        took |= {"prompt_tokens": record.tokens.prompt, "completion_tokens": record.tokens.completion}
    if record.metrics is None and delivered is not None:
        took |= {"completion_tokens": delivered.tokens, "busy_s": round(delivered.busy_s, 6)}
        if delivered.first_token_s is not None:
            took["ttft_ms"] = round((delivered.first_token_s - record.arrived_s) * 1000, 3)
    line = {
        "request_id": record.request_id,
        "route": record.route,
        "key": key_id_of(record),
        "key_name": record.key.name if record.key else None,
        "outcome": record.code,
        "replicas_lost": len(record.lost),
        "mode": plan.mode if plan else None,
        "power": plan.power if plan else None,
        "tier": plan.tier if plan else None,
        "escalation": record.escalated.metrics() if record.escalated else None,
        "entry": plan.entry.name if plan else None,
        "category": plan.classification.category if plan else None,
        "total_ms": round((record.ended_s - record.arrived_s) * 1000, 3),
        **took,
        "energy_wh": energy.get("wh"),
        "energy_source": energy.get("source"),
    }
    return line if record.prompt is None else line | {"prompt": record.prompt}


def prompt_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a checked body that hold what was asked."""
    return {name: body[name] for name in _PROMPTS if name in body}
