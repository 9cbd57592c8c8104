"""What is to be measured of a profile: engines, and the measurements on each. Pure.

Three kinds of engine:

- `off`: an entry's target without speculation. Entries that differ in nothing else share it.
- `drafts`: the entry as it is.
- `unquantised`: the model that a quantised target was made from, for the comparison of answers.

Each engine is started twice. With empty compile caches: answers, and one request at a time. When all engines were, with
warm ones: more requests at a time and what else there is, as long as the engines after it can still be started.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from router.registry import ChainEntry, Profile, Tier

Role = Literal["off", "drafts", "unquantised"]
Kind = Literal["start", "answers", "load", "acceptance", "gsm8k"]

BATCHES: Final = (1, 8, 32)
"""Requests at a time; see `batches`."""
ALL_DEPTHS_UP_TO: Final = 5
"""With a larger k_max, not every K between this and k_max is measured."""
MIXED: Final = "mixed"
AUTO: Final = "auto"
OFF: Final = "off"
ENGINE_ARGUMENTS: Final = {"enable_prefix_caching": False}
"""Of every engine, on top of the entry's: a time to first token is then that of a prompt that was never seen."""
LEFT_OUT: Final = ("reasoning_parser",)
"""Of the entry's arguments: the thoughts of a thinking model are measured too, as its first tokens are nothing else."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement on an engine. `setting` is `off`, `K=3`, `mixed`, `auto`, or for a start `empty` or `warm`."""

    kind: Kind
    setting: str
    batch: int = 0
    """Requests at a time; 0 where that is not what is varied."""

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.kind} {self.setting}" + (f" batch {self.batch}" if self.batch else "")


@dataclass(frozen=True, slots=True)
class Engine:
    """One start of an engine, and what is measured on it, the most wanted first."""

    label: str
    """Tier and entry, for people."""
    role: Role
    tier: Tier
    entry: ChainEntry
    measurements: tuple[Measurement, ...]
    impossible: str | None = None
    """Why it cannot be started here; None: it is tried."""
    dummy: tuple[str, ...] = ()
    """Models whose weights are made up, as they are not in the models folder."""
    again: bool = False
    """Whether this is its second start, with warm caches."""

    @property
    def key(self) -> str:
        """Its name in the results: equal for engines that run the same."""
        same = {"entry": self.entry.model_dump(mode="json", exclude={"name"}), "gpus": self.tier.gpus}
        digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.entry.target} {self.role} {digest}"


@dataclass(frozen=True, slots=True)
class Models:
    """What the models folder has of the models that a profile names."""

    missing: Mapping[str, str]
    """Why not, for each model of which there is not even a config."""
    dummy: frozenset[str]
    """Models of which there is only a config."""
    unquantised: Mapping[str, str]
    """For a quantised model, the one that it was made from, where the folder has it and the card can hold it."""


def depths(k_max: int) -> list[int]:
    """Return the numbers of draft tokens to measure: 0 and k_max, and all or some in between."""
    return [k for k in (*range(ALL_DEPTHS_UP_TO + 1), 8, 12, 16, 24) if k < k_max] + [k_max]


def batches(tier: Tier, entry: ChainEntry) -> list[int]:
    """Return how many requests at a time are measured: `BATCHES`, up to what an engine of the entry takes at a time."""
    most = min(tier.max_ongoing_requests, tier.most_sequences(entry))
    return sorted({min(batch, most) for batch in BATCHES})


def engines_of(
    profile: Profile, models: Models, cards: int, only: Callable[[str], bool] = lambda label: True
) -> list[Engine]:
    """Return the engines to start for a profile, in the order of its tiers and chains, each once; then each again.

    Args:
        profile: the profile.
        models: what the models folder has.
        cards: GPUs of this machine.
        only: whether an entry is wanted, by its label (`eco/ngram`).
    """
    found: dict[str, Engine] = {}
    for name, tier in profile.tiers.items():
        for entry in tier.chain:
            label = f"{name}/{entry.name}"
            if only(label):
                for engine in _engines_of_entry(label, tier, entry, models, cards):
                    found.setdefault(engine.key, engine)
    whole = list(found.values())
    return [_first_start(engine) for engine in whole] + [
        _second_start(engine) for engine in whole if engine.impossible is None
    ]


def _engines_of_entry(label: str, tier: Tier, entry: ChainEntry, models: Models, cards: int) -> list[Engine]:
    arguments = {key: value for key, value in entry.engine_args.items() if key not in LEFT_OUT} | ENGINE_ARGUMENTS
    plain = entry.model_copy(update={"speculation": None, "engine_args": arguments, "runner": None})
    base = models.unquantised.get(entry.target)
    quality = (Measurement("gsm8k", OFF),) if base else ()
    start = Measurement("start", "empty")
    at_once = batches(tier, entry)
    loads = tuple(Measurement("load", OFF, batch) for batch in at_once)
    engines = [
        _engine(label, "off", tier, plain, (start, Measurement("answers", OFF), *loads, *quality), models, cards)
    ]
    if entry.speculation is not None:
        drafting = entry.model_copy(update={"engine_args": plain.engine_args})
        measured = (start, *_of_drafts(entry.speculation.k_max, at_once))
        engines.append(_engine(label, "drafts", tier, drafting, measured, models, cards))
    if base:
        whole = plain.model_copy(update={"target": base, "quantization": None})
        engines.append(_engine(label, "unquantised", tier, whole, (start, *quality), models, cards))
    return engines


def _of_drafts(k_max: int, at_once: Sequence[int]) -> list[Measurement]:
    compared = dict.fromkeys(["K=0", "K=1", f"K={k_max}", MIXED])
    loads = [
        Measurement("load", setting, batch)
        for batch in at_once
        for setting in (f"K={k_max}", *(f"K={k}" for k in depths(k_max)[:-1]), MIXED, AUTO)  # auto learns from all
    ]
    return [*(Measurement("answers", setting) for setting in compared), *loads, Measurement("acceptance", f"K={k_max}")]


def _engine(
    label: str,
    role: Role,
    tier: Tier,
    entry: ChainEntry,
    measurements: Sequence[Measurement],
    models: Models,
    cards: int,
) -> Engine:
    draft = entry.speculation.draft if entry.speculation else None
    named = [model for model in (entry.target, draft) if model is not None]
    impossible = next((models.missing[model] for model in named if model in models.missing), None)
    dummy = tuple(named) if entry.target in models.dummy else ()  # vLLM then makes up the draft's too
    if not dummy and draft in models.dummy:
        impossible = f"there is only a config of its draft {draft}, and real weights of its target"
    if impossible is None and tier.gpu is not None and cards < tier.tensor_parallel:
        impossible = f"it needs {tier.tensor_parallel} GPUs, this machine has {cards}"
    if dummy:
        entry = entry.model_copy(update={"engine_args": {**entry.engine_args, "load_format": "dummy"}})
        # Nothing can be said about what made-up weights answer, or how often they agree.
        measurements = [each for each in measurements if each.kind not in ("acceptance", "gsm8k")]
    return Engine(label, role, tier, entry, tuple(measurements), impossible, dummy)


def _first_start(engine: Engine) -> Engine:
    return replace(engine, measurements=tuple(each for each in engine.measurements if _is_first(each)))


def _second_start(engine: Engine) -> Engine:
    rest = [each for each in engine.measurements if not _is_first(each)]
    return replace(engine, measurements=(Measurement("start", "warm"), *rest), again=True)


def _is_first(measurement: Measurement) -> bool:
    """Return whether it belongs to the first start of an engine."""
    return measurement.kind in ("start", "answers") or (measurement.kind, measurement.batch) == ("load", BATCHES[0])
