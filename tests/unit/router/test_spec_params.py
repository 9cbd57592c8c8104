"""What a request's speculation parameters become on a chain entry."""

from __future__ import annotations

from typing import Any

import pytest

from router.registry import Speculation
from router.spec_params import NO_DRAFTS, SpecParams

SPECULATION = Speculation(method="ngram", k_max=8, tau=0.25)


@pytest.mark.parametrize(
    ("requested", "resolved"),
    [
        ({}, {"k": "auto", "tau": 0.25}),
        ({"k": 3}, {"k": 3, "tau": 0.25}),
        ({"k": 32, "tau": 0.0}, {"k": 8, "tau": 0.0}),
        ({"k": "auto", "tau": 0.9}, {"k": "auto", "tau": 0.9}),
    ],
    ids=str,
)
def test_the_entry_fills_in_what_the_client_left_open_and_caps_k(
    requested: dict[str, Any], resolved: dict[str, Any]
) -> None:
    spec, reason = SpecParams.model_validate(requested).resolve(SPECULATION)
    assert (spec, reason) == (SpecParams.model_validate(resolved), None)
    assert spec.resolve(SPECULATION) == (spec, None)


@pytest.mark.parametrize(
    ("requested", "speculation", "over", "reason"),
    [
        ({"k": 5}, None, {}, "makes no drafts"),
        ({"enabled": False, "k": 5}, SPECULATION, {}, "no drafts are requested"),
        ({"k": 0}, SPECULATION, {}, "no drafts are requested"),
        ({}, Speculation(method="ngram", k_max=8, k=0), {}, "no drafts are requested"),
        ({"k": 5}, SPECULATION, {"seeded": True}, "with a seed"),
        ({}, SPECULATION, {"wasteful": True}, "hardly any"),
    ],
)
def test_drafting_is_off_with_a_reason(
    requested: dict[str, Any], speculation: Speculation | None, over: dict[str, bool], reason: str
) -> None:
    spec, why = SpecParams.model_validate(requested).resolve(speculation, **over)
    assert spec == NO_DRAFTS
    assert why is not None
    assert reason in why


def test_most_drafts_is_k_and_k_max_for_auto() -> None:
    assert SpecParams(k=3).most_drafts(SPECULATION) == 3
    assert SpecParams(k="auto").most_drafts(SPECULATION) == 8
    assert NO_DRAFTS.most_drafts(SPECULATION) == NO_DRAFTS.most_drafts(None) == 0
