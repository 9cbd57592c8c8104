"""Send many fuzzed requests, some at a time, and count what came back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bench.fuzzing.case import KINDS, Case, Kind
from bench.fuzzing.checks import documented_codes, faults
from bench.fuzzing.exchange import Exchange, exchange
from bench.reporting.report import Value

AT_A_TIME: Final = 16
"""Requests that are open at a time: fewer than a tier has places."""


class Fault(NamedTuple):
    """Something wrong with the answer to one request."""

    what: str
    number: int
    """Of the request in the run."""
    sent: bytes
    """How the request begins."""


@dataclass(slots=True)
class Tally:
    """What came back."""

    requests: Counter[Kind] = field(default_factory=Counter)
    statuses: Counter[tuple[Kind, int]] = field(default_factory=Counter)
    """Answers by status; 0: the connection was closed without one, by either side."""
    hangs: Counter[Kind] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    slowest_s: float = 0.0
    """Longest time until an exchange was over, s."""
    _codes: frozenset[str] = field(default_factory=documented_codes)

    def add(self, number: int, done: Exchange) -> None:
        """Count an exchange.

        Args:
            number: of the request in the run.
            done: it.
        """
        kind = done.case.kind
        self.requests[kind] += 1
        self.hangs[kind] += done.hung
        self.slowest_s = max(self.slowest_s, done.took_s)
        for answer in done.answers:
            self.statuses[kind, answer.status] += 1
        self.statuses[kind, 0] += not done.answers
        self.faults += [Fault(fault, number, done.case.sent[:400]) for fault in faults(done, self._codes)]

    def distinct_faults(self) -> Iterator[str]:
        """Yield each fault once, in words: how often, and the first request that had it."""
        first = {fault.what: fault for fault in reversed(self.faults)}
        for what, count in Counter(fault.what for fault in self.faults).most_common():
            yield f"{count} x {what}; request {first[what].number}: {first[what].sent!r}"

    def rows(self) -> Iterator[dict[str, Value]]:
        """Yield a table's rows: one for each kind, and their sums."""
        for kinds, name in (*(((kind,), kind) for kind in KINDS), (KINDS, "all")):
            found = [(status, count) for (kind, status), count in self.statuses.items() if kind in kinds]
            yield {
                "kind": name,
                "requests": sum(self.requests[kind] for kind in kinds),
                "2xx, 3xx": sum(count for status, count in found if 100 <= status < 400),
                "4xx": sum(count for status, count in found if 400 <= status < 500),
                "503": sum(count for status, count in found if status == 503),
                "other 5xx": sum(count for status, count in found if status >= 500 and status != 503),
                "no answer": sum(count for status, count in found if status == 0),
                "hangs": sum(self.hangs[kind] for kind in kinds),
            }


async def send_all(cases: Sequence[Case], port: int, tally: Tally, within_s: float, first_number: int = 0) -> None:
    """Send the requests, `AT_A_TIME` at a time, and count their exchanges.

    Args:
        cases: the requests.
        port: of the server, on loopback.
        tally: takes the exchanges.
        within_s: an exchange that takes longer is a hang, s.
        first_number: of the first request in the run.
    """
    numbered = iter(enumerate(cases, first_number))

    async def worker() -> None:
        for number, case in numbered:
            tally.add(number, await exchange(case, port, within_s))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_A_TIME):
            group.create_task(worker())
