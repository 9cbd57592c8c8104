"""What an answer took, as a field of the `usage` that vLLM's own layers write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from router.plan import Plan

FIELD: Final = "power_lever"
_SHOWN: Final = ("busy_s", "mean_batch", "energy", "water_l", "co2_g", "cost_usd", "full", "place", "savings")
"""Of the data of a `metrics` event."""
_DATA: Final = b"data: "


def used(plan: Plan, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return who answered and what it took."""
    return {"tier": plan.tier, "entry": plan.entry.name} | {name: metrics[name] for name in _SHOWN}


def with_used(piece: bytes, took: Mapping[str, Any]) -> bytes:
    """Return a piece of a response, whole events or a whole body, with what the answer took in each `usage` in it."""
    if b'"usage"' not in piece:
        return piece
    if piece.startswith(b"{"):
        return _told(piece, took)
    lines = piece.split(b"\n")
    told = [_DATA + _told(line[len(_DATA) :], took) if line.startswith(_DATA) else line for line in lines]
    return b"\n".join(told)


def _told(raw: bytes, took: Mapping[str, Any]) -> bytes:
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw  # `[DONE]`, or a body that came in pieces
    if not isinstance(data, dict):
        return raw
    # The events of the responses API have the whole response in them.
    whole = data.get("response")
    usages = [each.get("usage") for each in (data, whole) if isinstance(each, dict)]
    found = [usage for usage in usages if isinstance(usage, dict)]
    for usage in found:
        usage[FIELD] = took
    return orjson.dumps(data) if found else raw
