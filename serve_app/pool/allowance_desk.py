"""Where the requests of an ingress replica get what keys may take: from leases, which the pool gives and renews.

A request whose lease is not enough waits for one answer of the pool, with all others that came meanwhile. Once the
pool was found to be away, nobody waits until it answers again: each replica lets in its equal part of every limit, so
the sum still holds. That is neither open, which an overload of the pool would make of any limit, nor shut, which would
make of the pool's restart an outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cluster.pool.allowances import RENEW_EVERY_S, Account, Grant, Statement
from cluster.supervision import Supervised
from serve_app.admission.allowance import Allowance
from serve_app.transport.ray_errors import RAY_ERRORS

ANSWER_WITHIN_S: Final = 4.0
"""A pool that has not answered for so long is away, s. An answer takes some milliseconds, on a machine that is much too
busy a second or two. Two of them and a renewal take less than `GONE_AFTER_S`: what a late answer grants still counts in
the pool when it is used."""
_LONGEST_WAIT_S: Final = 2 * ANSWER_WITHIN_S
"""Of a request for its answer, s: a question may be under way when it comes."""
_LAST_WITHIN_S: Final = 1.0
"""How long a replica that ends waits for the pool to hear its last statement, s."""
_ROUNDING: Final = 1e-9
"""Relative: sums of dollars are not exact."""
Call = Callable[[int, Sequence[Statement]], Awaitable[list[Grant]]]
"""Sends statements to the pool, with a number that grows; returns the answers."""


class Want(NamedTuple):
    """What a request wants of one account."""

    account: Account
    most: float
    """The limit, as it is now."""
    amount: float
    least: float
    """Less than this is of no use; at most `amount`."""


@dataclass(slots=True)
class _Waiting:
    wants: Sequence[Want]
    answer: asyncio.Future[list[float] | None]
    """What is held; None: something lacks. Cancelled: the pool did not answer."""
    is_stated: bool = False

    @property
    def is_answered(self) -> bool:
        return self.answer.done() and not self.answer.cancelled()


class AllowanceDesk:
    """The allowances of one ingress replica.

    Args:
        call: asks the pool.
        replicas: how many ingress replicas there are.
    """

    def __init__(self, call: Call, replicas: int) -> None:
        self._call = call
        self._replicas = replicas
        self._allowances: dict[Account, Allowance] = {}
        self._waiting: list[_Waiting] = []
        self._asking: asyncio.Task[None] | None = None
        self._number = 0
        self._error: Exception | None = None
        """Why the pool did not answer last; None: it did."""
        self.work = Supervised("ingress: allowances of keys", self._renew, away=RAY_ERRORS)

    def of(self, account: Account, most: float) -> Allowance:
        """Return the allowance of an account. A new one has this limit, an old one keeps its own."""
        allowance = self._allowances.get(account)
        if allowance is None:
            allowance = self._allowances[account] = Allowance(account, most, self._replicas)
        return allowance

    def limited(self, account: Account, most: float) -> Allowance:
        """Return the allowance of an account for a request that comes: from now on its limit is this."""
        allowance = self.of(account, most)
        allowance.limit(most)
        return allowance

    async def hold(self, wants: Sequence[Want]) -> list[float] | None:
        """Hold something of each account, or nothing. From now on their limits are those of these wants.

        Returns:
            How much of each; None: one has too little.
        """
        allowances = [self.limited(want.account, want.most) for want in wants]
        now_s = self.now_s()
        if all(_is_enough(one.free(now_s), want.amount) for one, want in zip(allowances, wants, strict=True)):
            return self._held(wants, lambda one: one.free(now_s))
        if self._error is None:
            waiting = _Waiting(wants, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            self._ask()
            try:
                await asyncio.wait((waiting.answer,), timeout=_LONGEST_WAIT_S)
            except asyncio.CancelledError:
                self._give_back(waiting)
                raise
            finally:
                self._waiting.remove(waiting)
            if waiting.is_answered:
                return waiting.answer.result()
        now_s = self.now_s()
        return self._held(wants, lambda one: max(one.free(now_s), one.alone(now_s)))

    async def say_last(self) -> None:
        """Tell the pool what was used last, before this replica ends; it waits at most a second."""
        if any(one.is_due(self.now_s()) for one in self._allowances.values()):
            await asyncio.wait((self._ask(),), timeout=_LAST_WITHIN_S)

    def give_back(self, account: Account, amount: float) -> None:
        """Hold so much less of an account."""
        if (one := self._allowances.get(account)) is not None:
            one.give_back(amount)

    @property
    def is_alone(self) -> bool:
        """Whether the pool did not answer last."""
        return self._error is not None

    def now_s(self) -> float:
        """Return the time of a monotonic clock, s."""
        return asyncio.get_running_loop().time()

    def _held(self, wants: Sequence[Want], there: Callable[[Allowance], float]) -> list[float] | None:
        """Hold what is there, if it is enough."""
        now_s = self.now_s()
        allowances = [self.of(want.account, want.most) for want in wants]
        amounts = []
        for one, want in zip(allowances, wants, strict=True):
            free = there(one)
            if not _is_enough(free, want.least):
                return None
            amounts.append(want.amount if _is_enough(free, want.amount) else free)
        for one, amount in zip(allowances, amounts, strict=True):
            one.hold(amount, now_s)
        return amounts

    def _give_back(self, waiting: _Waiting) -> None:
        """Give back what was held for a request that has left meanwhile."""
        if waiting.is_answered:
            for want, amount in zip(waiting.wants, waiting.answer.result() or (), strict=False):
                self.of(want.account, want.most).give_back(amount)

    def _ask(self) -> asyncio.Task[None]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask_for_all())
        return self._asking

    async def _ask_for_all(self) -> None:
        """Ask the pool until nobody waits."""
        await self._exchange()
        while any(not waiting.answer.done() for waiting in self._waiting):
            await self._exchange()

    async def _exchange(self) -> None:
        """Say to the pool what is due, and take its answers. One at a time: an older answer must not follow a newer."""
        now_s = self.now_s()
        asked = [waiting for waiting in self._waiting if not waiting.answer.done()]
        for waiting in asked:
            waiting.is_stated = True
        statements = self._statements(asked, now_s)
        self._number += 1
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                grants = await self._call(self._number, statements)
        except RAY_ERRORS as error:
            self._no_answer(error, statements)
        except asyncio.CancelledError:
            # Serve and gRPC cancel a call when the replica that it went to goes away.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._no_answer(TimeoutError("the call was cancelled"), statements)
        else:
            self._error = None
            self._take(grants)

    def _no_answer(self, error: Exception, statements: Sequence[Statement]) -> None:
        """Note that the pool is away."""
        self._error = error
        for statement in statements:
            self._allowances[statement.account].lost()
        for waiting in self._waiting:
            waiting.answer.cancel()  # of those that have none yet

    def _statements(self, asked: Sequence[_Waiting], now_s: float) -> list[Statement]:
        wants: dict[Account, list[Want]] = {}
        for waiting in asked:
            for want in waiting.wants:
                wants.setdefault(want.account, []).append(want)
        statements = []
        for account, allowance in list(self._allowances.items()):
            if account in wants or allowance.is_due(now_s):
                of_it = wants.get(account, ())
                need = sum(want.amount for want in of_it)
                statements.append(allowance.statement(need, min((want.least for want in of_it), default=1.0), now_s))
            elif not allowance.used(now_s):
                del self._allowances[account]
        return statements

    def _take(self, grants: Sequence[Grant]) -> None:
        now_s = self.now_s()
        for grant in grants:
            self._allowances[grant.account].granted(grant, now_s)
        for waiting in self._waiting:
            if waiting.answer.done():
                continue
            held = self._held(waiting.wants, lambda one: one.free(now_s))
            if held is not None or waiting.is_stated:
                waiting.answer.set_result(held)

    async def _renew(self) -> None:
        """Renew what is in use, twice a second.

        Raises:
            RAY_ERRORS: the pool is away.
        """
        await asyncio.sleep(RENEW_EVERY_S)
        if self._error is not None or any(one.is_due(self.now_s()) for one in self._allowances.values()):
            await asyncio.shield(self._ask())
        if self._error is not None:
            raise self._error


def _is_enough(free: float, amount: float) -> bool:
    return free * (1 + _ROUNDING) >= amount
