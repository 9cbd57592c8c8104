"""The prompt families that were seen, and the curves of their requests."""

from __future__ import annotations

from serve_app.speculation.acceptance import gains_at, within_floor
from serve_app.speculation.curve import Curve
from serve_app.speculation.family import Family, Profile, StepCounts
from serve_app.speculation.settings import AcceptanceSettings

MAX_FAMILIES = 64
"""Families beyond these share one estimate: their names come from requests, memory must not."""
OTHER = "other"
_MAX_CURVES = 1000
"""Curves kept for a family: each floor that requests ask for makes its own."""


class FamilyState:
    """What is held of a family."""

    __slots__ = ("counts", "curves", "estimate", "news", "profile")

    def __init__(self, estimate: Family, profile: Profile) -> None:
        self.estimate = estimate
        self.profile = profile
        """Of the estimate when it last had news."""
        self.curves: dict[tuple[int, float], Curve] = {}
        """By level and floor, for the profile."""
        self.counts: StepCounts | None = None
        """Of the step being observed; None: nothing yet."""
        self.news = 0
        """Requests' outcomes since the profile was made."""

    def curve(self, level: int, floor: float, share: float) -> Curve:
        """The curve of requests at that level with that floor (0: none), where that share of drafts comes."""
        curve = self.curves.get((level, floor))
        if curve is None:
            gains = gains_at(level, self.profile)
            if len(self.curves) >= _MAX_CURVES:
                self.curves.clear()
            curve = self.curves[level, floor] = Curve.of(within_floor(gains, floor), share)
        return curve

    def learn(self, settings: AcceptanceSettings) -> None:
        """Take in the step's counts; form the profile again when they amount to news."""
        counts, self.counts = self.counts, None
        if counts is None:
            return
        self.estimate = self.estimate.after(counts, settings)
        self.news += sum(counts.ended)
        if self.news >= settings.family_growth * self.estimate.trials[0]:
            self.profile = self.estimate.profile(settings)
            self.curves.clear()
            self.news = 0


class Families:
    """All families of an engine, by name."""

    def __init__(self, k_max: int, settings: AcceptanceSettings) -> None:
        self._k_max = k_max
        self._settings = settings
        self.by_name: dict[str, FamilyState] = {}

    def get(self, name: str) -> FamilyState:
        """The family of that name, new where it was not seen before."""
        if name not in self.by_name and len(self.by_name) >= MAX_FAMILIES:
            name = OTHER
        state = self.by_name.get(name)
        if state is None:
            estimate = Family.new(name, self._k_max, self._settings)
            state = self.by_name[name] = FamilyState(estimate, estimate.profile(self._settings))
        return state
