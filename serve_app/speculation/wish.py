"""What a request asks of speculation, and how it travels in `SamplingParams.extra_args`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_KEYS = ("k", "tau", "category")
_PREFIX = "speculation_"
_CATEGORY = "general_reasoning"


@dataclass(frozen=True, slots=True)
class SpeculationWish:
    """One request's wish."""

    k: int | Literal["auto"] = "auto"
    """Draft tokens to verify per step; 0: none; `auto`: the controller decides at every step."""
    tau: float | None = None
    """Floor of the acceptance rate (0-1); None and 0: no floor."""
    category: str = _CATEGORY
    """Prompt category, the router's category: requests of one category are expected to be drafted alike."""
    seeded: bool = False
    """True: samples with a seed of its own, so nothing is drafted, whatever `k` says. Does not travel: the scheduler
    sees it in the sampling parameters."""

    def to_dict(self) -> dict[str, int | float | str | None]:
        """As JSON types; `from_dict` reads it back."""
        return {"k": self.k, "tau": self.tau, "category": self.category}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], k_max: int | None = None) -> SpeculationWish:
        """The wish in `data`, where missing keys have their defaults.

        Args:
            data: any of `k`, `tau`, `category`.
            k_max: most draft tokens that the engine can verify; None where it is not known yet.

        Raises:
            ValueError: says which key, what it got and what is allowed.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"speculation must be a mapping with any of {list(_KEYS)}, got {data!r}")
        unknown = [key for key in data if key not in _KEYS]
        if unknown:
            raise ValueError(f"speculation has unknown keys {unknown}, allowed: {list(_KEYS)}")
        return cls(
            k=_k(data.get("k", "auto"), k_max),
            tau=_tau(data.get("tau")),
            category=_category(data.get("category", _CATEGORY)),
        )

    def to_arguments(self) -> dict[str, int | float | str]:
        """As extra sampling arguments: flat, as vLLM's OpenAI layer takes no nested ones. A tau of None is left out."""
        return {_PREFIX + key: value for key, value in self.to_dict().items() if value is not None}

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], default: SpeculationWish) -> SpeculationWish:
        """The wish among extra sampling arguments, other ones ignored; what is missing is as in `default`.

        Raises:
            ValueError: as `from_dict`.
        """
        given = {key.removeprefix(_PREFIX): value for key, value in arguments.items() if key.startswith(_PREFIX)}
        return cls.from_dict({**default.to_dict(), **given})


def _k(value: Any, k_max: int | None) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    most = math.inf if k_max is None else k_max
    # bool is an int to Python; to the client it is a mistake.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        allowed = "an integer of at least 0" if k_max is None else f"an integer from 0 to {k_max}"
        raise ValueError(f"speculation.k must be 'auto' or {allowed}, got {value!r}")
    return value


def _tau(value: Any) -> float | None:
    if value is None:
        return None
    # NaN fails the comparison.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"speculation.tau must be null or a number from 0 to 1, got {value!r}")
    return float(value)


def _category(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"speculation.category must be a non-empty string, got {value!r}")
    return value
