"""The outcomes on which auto mode is trained and measured, and the mixes of their sources."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from bench.reporting.report import REPOSITORY
from router.calibration.outcomes import Outcome, read_outcomes

ROUTING: Final = REPOSITORY.parent / "shared" / "data" / "routing"
"""A file a source; its README has the licences."""
ROUTER_ARENA: Final = ROUTING.parent / "routing_outcomes.jsonl"
"""A part of RouterArena's cached results (Apache-2.0)."""
ROUTER_ARENA_SOURCE: Final = "routerarena"
ENGLISH_USERS: Final = ("arena_hard_en_proxy", "mt_bench", "infibench")
"""Sources of prompts as people typed them, in English."""
USERS: Final = (*ENGLISH_USERS, "ko_arena_hard", "shaberi_ja")
SAME_OUTCOMES: Final = ("arena_hard_en_proxy", "ko_arena_hard")
"""Two wordings of the same prompts, with the same outcomes: they are left out together."""


ANCHORS: Final = Path(__file__).with_name("anchors.yaml")
ANCHOR_SOURCE: Final = "anchors"
ANCHOR_WEIGHT: Final = 1.0
"""What all of them together count against a source that was measured."""


def read_anchors() -> list[Outcome]:
    """Return the prompts whose gain is our own choice, for training alone; each gain is a source."""
    anchors: dict[float, list[str]] = yaml.safe_load(ANCHORS.read_text(encoding="utf-8"))
    weight = ANCHOR_WEIGHT / len(anchors)
    return [
        Outcome(prompt=prompt, weak_score=0.0, strong_score=gain, source=f"{ANCHOR_SOURCE}_{gain:g}", weight=weight)
        for gain, prompts in anchors.items()
        for prompt in prompts
    ]


def read_sources(folder: Path = ROUTING) -> list[Outcome]:
    """Return the outcomes of all files of a folder.

    Raises:
        ConfigError: a file is not as it must be.
    """
    return [outcome for file in sorted(folder.glob("*.jsonl")) for outcome in read_outcomes(file)]


def read_router_arena() -> list[Outcome]:
    """Return the outcomes of RouterArena, for reports alone: nothing is trained on them.

    Raises:
        ConfigError: the file is not as it must be.
    """
    found = read_outcomes(ROUTER_ARENA)
    return [outcome.model_copy(update={"source": ROUTER_ARENA_SOURCE}) for outcome in found]
