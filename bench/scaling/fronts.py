"""Fronts of misses against GPU-hours, one for each policy, trace and size; ours against every point of the rivals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Final, NamedTuple

from bench.scaling.policies import FAMILIES, OURS
from bench.scaling.simulation import Outcome

NONE: Final = 0.001
"""Misses up to this share are as good as none."""
MISSES_GOAL: Final = 0.5
"""Our misses at a rival's GPU-hours, as a share of its misses."""
HOURS_GOAL: Final = 0.9
"""Our GPU-hours at a rival's misses, as a share of its GPU-hours."""


_STUDENT_T: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Its 0.975 quantile for 1 to 9 degrees of freedom."""


HELP: Final = """\
Fewest misses, and GPU-hours there. `kept`: all replicas, always. `kept_admission`: the same, and requests that would be
late are refused (and count as missed). `ours`: as shipped. `fast_start`: ours, if a start took a tenth of the time.
`clairvoyant`: a policy that knows the future. What even `kept` misses, more replicas than the most or admission would
serve; what `clairvoyant` serves for less than `kept`, a forecast would; what `fast_start` serves and `ours` does not, a
pool of warm nodes, weights on the node, or compiled kernels would."""


class Key(NamedTuple):
    """One point of a front."""

    trace: str
    replicas_max: int
    policy: str
    setting: float


Row = dict[str, Any]


def rows_of(outcomes: Mapping[Key, Sequence[Outcome]]) -> list[Row]:
    """Return one row for each point: means over the seeds, and half the widths of their 95% intervals."""
    rows = []
    for key, seeds in outcomes.items():
        misses, hours = [each.miss_share for each in seeds], [each.gpu_hours for each in seeds]
        rows.append(
            {
                **key._asdict(),
                "slo_miss_share": fmean(misses),
                "misses_ci95": half_width(misses),
                "gpu_hours": fmean(hours),
                "hours_ci95": half_width(hours),
                "scale_actions": fmean(each.scale_actions for each in seeds),
                "requests": round(fmean(each.requests for each in seeds)),
                "seeds": len(seeds),
            }
        )
    return rows


def half_width(samples: Sequence[float]) -> float | None:
    """Return half the width of the mean's 95% interval, for up to ten samples; None for one."""
    return _STUDENT_T[len(samples) - 2] * stdev(samples) / sqrt(len(samples)) if len(samples) > 1 else None


class Front:
    """The best that a policy's points reach, with straight lines between them.

    Args:
        points: GPU-hours and misses (0-1). Those that another beats in both are left out.
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        self._points: list[tuple[float, float]] = []
        for hours, misses in sorted(points):
            if not self._points or misses < self._points[-1][1]:
                self._points.append((hours, misses))

    def misses_at(self, hours: float) -> float | None:
        """Return the misses for at most these GPU-hours; None: no point is so cheap."""
        return _between(self._points, hours)

    def hours_at(self, misses: float) -> float | None:
        """Return the GPU-hours for at most these misses; None: no point misses so few."""
        return _between([(each, hours) for hours, each in reversed(self._points)], misses)


def _between(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """Return y at x = `at`, on lines through points whose x rise; that of the last beyond it, None before the first."""
    if at < points[0][0]:
        return None
    for (x, y), (next_x, next_y) in pairwise(points):
        if at < next_x:
            return y + (next_y - y) * (at - x) / (next_x - x)
    return points[-1][1]


def goal_rows(rows: Sequence[Row]) -> list[Row]:
    """Compare our front with every point of the rivals.

    `misses_met`: at its GPU-hours, ours misses at most half as many, or as good as none. `hours_met`: at its misses,
    ours takes at most 0.9 of its GPU-hours. `clairvoyant_misses` is what one that knows the future misses at its hours.
    """
    made = []
    for place, here in _by_place(rows).items():
        fronts = {name: _front(here, name) for name in (OURS, "clairvoyant")}
        for row in here:
            if not FAMILIES[row["policy"]].rival:
                continue
            its_hours, its_misses = row["gpu_hours"], row["slo_miss_share"]
            our_misses = fronts[OURS].misses_at(its_hours)
            our_hours = fronts[OURS].hours_at(max(its_misses, NONE))
            made.append(
                {
                    "trace": place[0],
                    "replicas_max": place[1],
                    "rival": row["policy"],
                    "setting": row["setting"],
                    "its_hours": its_hours,
                    "its_misses": its_misses,
                    "our_misses": our_misses,
                    "clairvoyant_misses": fronts["clairvoyant"].misses_at(its_hours),
                    "our_hours_ratio": None if our_hours is None else our_hours / its_hours,
                    "misses_met": _yes(our_misses is not None and our_misses <= max(NONE, MISSES_GOAL * its_misses)),
                    "hours_met": _yes(our_hours is not None and our_hours <= HOURS_GOAL * its_hours),
                }
            )
    return made


def summary_rows(goals: Sequence[Row]) -> list[Row]:
    """Return for how many of each rival's points the goal of misses and that of GPU-hours hold, by trace and size."""
    made = []
    for (trace, size), here in _by_place(goals).items():
        met: Row = {}
        for rival in dict.fromkeys(row["rival"] for row in goals):
            points = [row for row in here if row["rival"] == rival]
            misses, hours = (sum(row[goal] == "yes" for row in points) for goal in ("misses_met", "hours_met"))
            met[rival] = f"{misses} and {hours} of {len(points)}"
        made.append({"trace": trace, "replicas_max": size, **met})
    return made


def help_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the fewest misses of ours by trace and size, and of what would help (`HELP`), with their GPU-hours."""
    made = []
    for (trace, size), here in _by_place(rows).items():
        kept = max((row for row in here if row["policy"] == "fixed"), key=lambda row: float(row["gpu_hours"]))
        made.append(
            {
                "trace": trace,
                "replicas_max": size,
                "kept_hours": kept["gpu_hours"],
                "kept": kept["slo_miss_share"],
                "kept_admission": _least(here, "fixed_admission")["slo_miss_share"],
                "ours": _least(here, OURS)["slo_miss_share"],
                "ours_hours": _least(here, OURS)["gpu_hours"],
                "fast_start": _least(here, "ours_fast_start")["slo_miss_share"],
                "fast_start_hours": _least(here, "ours_fast_start")["gpu_hours"],
                "clairvoyant": _least(here, "clairvoyant")["slo_miss_share"],
                "clairvoyant_hours": _least(here, "clairvoyant")["gpu_hours"],
            }
        )
    return made


def _least(rows: Sequence[Row], policy: str) -> Row:
    """Return the policy's point with the fewest misses."""
    return min(
        (row for row in rows if row["policy"] == policy), key=lambda row: (row["slo_miss_share"], row["gpu_hours"])
    )


def _by_place(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    places: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        places.setdefault((row["trace"], row["replicas_max"]), []).append(row)
    return places


def _front(rows: Sequence[Row], policy: str) -> Front:
    return Front((row["gpu_hours"], row["slo_miss_share"]) for row in rows if row["policy"] == policy)


def _yes(met: bool) -> str:
    return "yes" if met else "no"
