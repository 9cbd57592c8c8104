"""Whether a conversation speaks to the router: of tiers, its tools, its instructions. Then no agent moves the tier.

The deterministic router does not heed such words (`signals.DIRECTIVE_TERMS`). A model may, so what it chooses for such
a prompt is not taken. Wide on purpose: a prompt that speaks of GPUs without any design on the router loses nothing but
an agent's second opinion. It knows English words only; the other bounds (`bounds.py`) hold in any language.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from router.difficulty import signals

_WORD: Final = re.compile(r"[a-z0-9]+")
_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
ROUTER_WORDS: Final = frozenset(
    _WORD.findall(
        "ultra eco gpu gpus h100 h200 a100 a10g l4 t4 tier tiers router routing route routed reroute override overrule "
        "jailbreak injection classifier difficulty"
    )
)
"""Words of the router's own world."""
ROUTER_PAIRS: Final = frozenset(
    tuple(pair.split())
    for pair in (
        "system prompt", "your instructions", "your tools", "the tools", "previous instructions", "prior instructions",
        "earlier instructions", "above instructions", "all instructions", "ignore all", "ignore previous",
        "ignore your", "ignore the", "ignore any", "ignore everything", "disregard your", "disregard the",
        "disregard all", "disregard any", "disregard previous", "forget your", "forget all", "forget previous",
        "forget everything", "developer mode", "admin mode", "best model", "biggest model", "largest model",
        "strongest model", "smartest model", "better model", "bigger model", "larger model", "smaller model",
        "smallest model", "cheapest model", "most powerful", "most capable", "max power", "maximum power",
        "full power", "highest power", "lowest power", "power to", "power level", "performance mode", "balanced mode",
        "performance machine", "biggest machine", "largest machine", "best machine", "best hardware", "top hardware",
        "fastest hardware", "use performance", "use balanced", "pick performance", "pick balanced",
        "choose performance", "choose balanced", "select performance", "select balanced", "safety critical",
        "highest priority", "build config", "check gpu", "classify prompt", "recent runs", "submit plan",
    )
)  # fmt: skip
"""Neighbouring words by which people address a router or a model behind it."""


def speaks_to_router(texts: Iterable[str]) -> tuple[str, ...]:
    """The words and pairs found, in order of the alphabet; () when there are none."""
    found: set[str] = set()
    for text in texts:
        words = _WORD.findall(_folded(text))
        pairs = set(pairwise(words))
        found |= (ROUTER_WORDS | signals.DIRECTIVE_TERMS.words).intersection(words)
        found |= {" ".join(pair) for pair in ROUTER_PAIRS & pairs}
        found |= {phrase.text for phrase in signals.DIRECTIVE_TERMS.phrases if phrase.pairs <= pairs}
    return tuple(sorted(found))


def _folded(text: str) -> str:
    """Lower case without accents, full-width and other compatibility forms as plain letters, invisible marks gone."""
    plain = unicodedata.normalize("NFKD", _INVISIBLE.sub("", text)).lower()
    return "".join(char for char in plain if not unicodedata.combining(char))
