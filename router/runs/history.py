"""The record of past runs: fading statistics by tier and category.

Each of the four tiers and six categories has the same few sums, so the record's size does not depend on the number of
runs. It has no text of any prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isnan
from types import MappingProxyType
from typing import NamedTuple

from router.difficulty.categories import Category
from router.registry import TierName
from router.runs.statistics import NO_VALUES, Fading, HalfLife, kept_after
from router.runs.summary import FINISH_REASONS, HandedOver, Recent, RunReport, RunSummary, TierRuns
from router.signs import HOPELESS, Signs

HALF_LIFE = HalfLife(values=50.0, seconds=3600.0)
"""A run weighs half after 50 further ones of its tier and category, and after an hour: enough runs for a mean of
restless values, few enough to follow a change of the load within minutes."""
_FORGOTTEN = 0.01
"""A category with fewer effective runs than this counts as never seen."""


class RunRecord:
    """Fading statistics of every tier and category.

    Args:
        half_life: how fast runs are forgotten.
    """

    def __init__(self, half_life: HalfLife = HALF_LIFE) -> None:
        self._half_life = half_life
        self._cells: dict[tuple[TierName, Category], _Cell] = {}

    def add(self, report: RunReport | HandedOver, now_s: float) -> None:
        """Add a run that finished about now (seconds of any monotonic clock), or what is known of half a run."""
        key = (report.tier, report.category)
        cell = self._cells.get(key, _EMPTY)
        if isinstance(report, HandedOver):
            self._cells[key] = cell.after_half(report, now_s, self._half_life)
        else:
            self._cells[key] = cell.after(report, now_s, self._half_life)

    def summaries(self, now_s: float) -> Mapping[TierName, TierRuns]:
        """Return the summaries by tier, as of now; tiers without a run are left out."""
        tiers: dict[TierName, dict[Category, _Cell]] = {}
        for (tier, category), kept in self._cells.items():
            cell = kept.at(now_s, self._half_life)
            if cell.runs >= _FORGOTTEN:
                tiers.setdefault(tier, {})[category] = cell
        return MappingProxyType({tier: _tier_runs(cells) for tier, cells in tiers.items()})


def _tier_runs(cells: Mapping[Category, _Cell]) -> TierRuns:
    by_category = {category: cell.summary() for category, cell in cells.items()}
    return TierRuns(_merged(cells.values()).summary(), MappingProxyType(by_category))


class _Quantities(NamedTuple):
    """One statistic for each measured quantity; the fields are those of `RunSummary`."""

    ttft_ms: Fading = NO_VALUES
    engine_ttft_ms: Fading = NO_VALUES
    ms_per_token: Fading = NO_VALUES
    total_ms: Fading = NO_VALUES
    tokens_per_s: Fading = NO_VALUES
    completion_tokens: Fading = NO_VALUES
    energy_wh: Fading = NO_VALUES
    energy_measured: Fading = NO_VALUES
    cost_usd: Fading = NO_VALUES
    watts: Fading = NO_VALUES
    usd_per_hour: Fading = NO_VALUES
    first_logprob: Fading = NO_VALUES
    worst_logprob: Fading = NO_VALUES

    def with_values(self, values: Mapping[str, float]) -> _Quantities:
        """Return the statistics with one more value of each of these."""
        return self._replace(**{name: getattr(self, name).with_value(value) for name, value in values.items()})


def _measured(report: RunReport) -> dict[str, float]:
    """Return each quantity of one run; a quantity that it does not have (the pace of a single token) is left out."""
    values = {
        "ttft_ms": report.ttft_ms,
        "engine_ttft_ms": max(0.0, report.ttft_ms - report.queue_ms),
        "total_ms": report.total_ms,
        "completion_tokens": float(report.completion_tokens),
        "energy_wh": report.energy_wh,
        "energy_measured": float(report.energy_is_measured),
        "cost_usd": report.cost_usd,
    }
    if report.completion_tokens > 1:
        values["ms_per_token"] = max(0.0, report.total_ms - report.ttft_ms) / (report.completion_tokens - 1)
    if report.completion_tokens > 0 and report.tokens_per_s > 0:
        values["tokens_per_s"] = report.tokens_per_s
    if report.engine_s > 0:
        values["watts"] = report.energy_wh * 3600 / report.engine_s
        values["usd_per_hour"] = report.cost_usd * 3600 / report.engine_s
    return values | _of_signs(report.signs)


def _of_signs(signs: Signs) -> dict[str, float]:
    """Return each quantity of an answer's signs; without log-probabilities of a whole window there is none."""
    if isnan(signs.first):
        return {}
    return {"first_logprob": max(HOPELESS, signs.first), "worst_logprob": max(HOPELESS, signs.worst)}


class _Cell(NamedTuple):
    """The record of one tier and category; it begins with `_EMPTY`."""

    at_s: float
    runs: float
    quantities: _Quantities
    draft_tokens: float
    accepted_tokens: float
    endings: tuple[float, ...]
    """Runs by how they ended, in the order of `FINISH_REASONS`."""

    def faded(self, kept: float, now_s: float) -> _Cell:
        """Return the cell with every weight times `kept` (0-1)."""
        return _Cell(
            now_s,
            self.runs * kept,
            _Quantities(*(quantity.faded(kept) for quantity in self.quantities)),
            self.draft_tokens * kept,
            self.accepted_tokens * kept,
            tuple(ended * kept for ended in self.endings),
        )

    def at(self, now_s: float, half_life: HalfLife) -> _Cell:
        """Return the cell as of now."""
        return self.faded(kept_after(0, now_s - self.at_s, half_life), now_s)

    def after(self, report: RunReport, now_s: float, half_life: HalfLife) -> _Cell:
        """Return the cell with one more run."""
        old = self.faded(kept_after(1, now_s - self.at_s, half_life), now_s)
        return old._replace(
            runs=old.runs + 1,
            quantities=old.quantities.with_values(_measured(report)),
            draft_tokens=old.draft_tokens + report.draft_tokens,
            accepted_tokens=old.accepted_tokens + report.accepted_tokens,
            endings=tuple(
                ended + (reason == report.finish_reason)
                for reason, ended in zip(FINISH_REASONS, old.endings, strict=True)
            ),
        )

    def after_half(self, report: HandedOver, now_s: float, half_life: HalfLife) -> _Cell:
        """Return the cell with the signs of an answer that another tier went on with."""
        old = self.faded(kept_after(1, now_s - self.at_s, half_life), now_s)
        return old._replace(quantities=old.quantities.with_values(_of_signs(report.signs)))

    def merged(self, other: _Cell) -> _Cell:
        """Return both cells together; they must be of the same moment."""
        return _Cell(
            self.at_s,
            self.runs + other.runs,
            _Quantities(
                *(mine.merged(its) for mine, its in zip(self.quantities, other.quantities, strict=True)),
            ),
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(mine + its for mine, its in zip(self.endings, other.endings, strict=True)),
        )

    def summary(self) -> RunSummary:
        """Return the cell as the router reads it."""
        measured = {
            name: Recent(quantity.mean, quantity.deviation, quantity.weight)
            for name, quantity in self.quantities._asdict().items()
            if quantity.weight > 0
        }
        reasons = zip(FINISH_REASONS, self.endings, strict=True)
        shares = {reason: ended / self.runs for reason, ended in reasons if ended > 0 and self.runs > 0}
        return RunSummary(
            runs=self.runs,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            finish_reasons=MappingProxyType(shares),
            **measured,
        )


_EMPTY = _Cell(0.0, 0.0, _Quantities(), 0.0, 0.0, (0.0,) * len(FINISH_REASONS))


def _merged(cells: Iterable[_Cell]) -> _Cell:
    total, *rest = cells
    for cell in rest:
        total = total.merged(cell)
    return total
