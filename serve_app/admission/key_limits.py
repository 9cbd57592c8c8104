"""The limits of keys at the door of an ingress replica: who is let in, what each request takes, and what is refused.

A request is held against its key's limits before its body is read, and for its tokens once more when that is known. It
holds its estimated tokens while it is open, so that many at once do not exceed a limit far; what it really takes
counts. A request that is refused for a limit costs nothing of any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.pool.allowances import Account
from router.agent.result import AgentFallback
from serve_app.admission.allowance import MINUTE_S
from serve_app.admission.headers import route_of
from serve_app.api.errors import ApiError, error_form, error_response
from serve_app.api.request_record import record_of, request_id_of
from serve_app.auth.identity import key_in
from serve_app.auth.key_file import FollowedKeys
from serve_app.auth.keys import NO_LIMITS, Key, KeyLimits, utc_now
from serve_app.pool.allowance_desk import AllowanceDesk, Want

REQUESTS: Final = "requests_per_minute"
TOKENS: Final = "tokens_per_minute"
CONCURRENT: Final = "max_concurrent"
KEY_USD: Final = "agent_usd_per_day"
ALL_USD: Final = "agent.usd_per_day"
ALL_KEYS: Final = ""
"""The holder of the application's own limit. No key has that name."""
USUAL_ANSWER_TOKENS: Final = 512
"""What is held for an answer whose client set no limit."""
HELD_RETRY_S: Final = 2
"""`Retry-After` where what lacks is held by open requests, whose end nobody knows, or the pool is away, s."""
_MARGIN_S: Final = 0.1
"""What expires at a time is sure to have expired so much later, at any replica."""
_COUNTED: Final = {REQUESTS: "requests", TOKENS: "tokens"}
RATE_LIMIT_HEADERS: Final = tuple(
    f"{name}-{what}"
    for what in _COUNTED.values()
    for name in ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
) + tuple(
    f"anthropic-ratelimit-{what}-{name}" for what in _COUNTED.values() for name in ("limit", "remaining", "reset")
)
_PERMIT: Final = "power_lever.permit"


@dataclass(slots=True)
class Permit:
    """What one request holds of limits; `close` gives it back. One without limits holds nothing.

    Args:
        desk: of this ingress replica.
        holder: name of the key.
        limits_now: returns the limits of that name. They may change while the request is open.
        agent_usd_per_day: of the application, USD; None: no limit.
        now: the time, for what is counted by the day.
    """

    desk: AllowanceDesk
    holder: str
    limits_now: Callable[[], KeyLimits]
    agent_usd_per_day: float | None
    now: Callable[[], datetime]
    _held: dict[Account, float] = field(default_factory=dict)
    _is_let_in: bool = False
    _is_closed: bool = False

    async def enter(self) -> None:
        """Take a request and a slot, if there are still tokens.

        Raises:
            ApiError: 429.
        """
        wants = [self._want(REQUESTS, 1), self._want(CONCURRENT, 1)]
        tokens = self._want(TOKENS, 1)
        if tokens is not None:
            allowance = self.desk.limited(tokens.account, tokens.most)
            now_s = self.desk.now_s()
            if not allowance.knows(now_s) or allowance.left(now_s) < 1:
                wants.append(tokens)
        await self._hold([want for want in wants if want is not None])
        # Only looked at: how many it needs is not known yet, and one held by each would let in as many.
        self._give_back(self._account(TOKENS))

    async def hold_tokens(self, estimate: int) -> None:
        """Hold tokens for the request, of those that are left; with it, it is let in.

        Args:
            estimate: of its prompt and its answers; 0: it takes none.

        Raises:
            ApiError: 429, none are left.
        """
        want = self._want(TOKENS, estimate) if estimate else None
        if want is not None:
            await self._hold([want])
        self._let_in()

    def take_tokens(self, tokens: int) -> None:
        """Count tokens that the request has taken."""
        most = self.limits_now().tokens_per_minute
        if most is not None:
            self._use(self._account(TOKENS), most, tokens, MINUTE_S)

    async def open_purse(self, usd: float) -> None:
        """Hold what the router agent may cost for this request.

        Raises:
            AgentFallback: the key's or the application's day has not so much left.
        """
        for account, most in self._purses():
            if await self.desk.hold([Want(account, most, usd, usd)]) is None:
                self._close_purse()
                used = most - self.desk.of(account, most).left(self.desk.now_s())
                whose = "this key's" if account.holder else "the application's"
                detail = f"daily cap reached: {whose} {account.limit} is {most:g} USD, used or held are {used:.3g}"
                raise AgentFallback("daily_cap", detail)
            self._held[account] = usd

    def pay(self, usd: float) -> None:
        """Count what the agent has cost, and hold no more."""
        today_s = _seconds_left_of_day(self.now())
        for account, most in self._purses():
            if usd > 0:
                self._use(account, most, usd, today_s)
        self._close_purse()

    def close(self) -> None:
        """Give back what the request held. Later calls do nothing."""
        if not self._is_closed:
            self._let_in()
            self._is_closed = True
            for account in list(self._held):
                self._give_back(account)

    def headers(self, *, anthropic: bool) -> dict[str, str]:
        """Return the headers that tell of the limits, in OpenAI's form, and in Anthropic's too."""
        found: dict[str, str] = {}
        now_s, limits = self.desk.now_s(), self.limits_now()
        for limit, what in _COUNTED.items():
            most = getattr(limits, limit)
            if most is None:
                continue
            allowance = self.desk.of(self._account(limit), most)
            left, reset_s = math.floor(allowance.left(now_s)), allowance.reset_s(now_s)
            found |= {
                f"x-ratelimit-limit-{what}": str(most),
                f"x-ratelimit-remaining-{what}": str(left),
                f"x-ratelimit-reset-{what}": duration(reset_s),
            }
            if anthropic:
                at = self.now() + timedelta(seconds=math.ceil(reset_s))
                found |= {
                    f"anthropic-ratelimit-{what}-limit": str(most),
                    f"anthropic-ratelimit-{what}-remaining": str(left),
                    f"anthropic-ratelimit-{what}-reset": f"{at:%Y-%m-%dT%H:%M:%SZ}",
                }
        return found

    def refuse(self) -> None:
        """Give back what the request held, which was not let in."""
        self._is_let_in = True  # and has cost no request
        self.close()

    def _let_in(self) -> None:
        """Count the request: only now is it sure that it is not refused for its tokens."""
        if not self._is_let_in:
            self._is_let_in = True
            account, most = self._account(REQUESTS), self.limits_now().requests_per_minute
            if most is not None and account in self._held:
                self._use(account, most, 1, MINUTE_S)

    async def _hold(self, wants: Sequence[Want]) -> None:
        held = await self.desk.hold(wants) if wants else []
        if held is None:
            self.refuse()
            raise self._refusal(wants)
        for want, amount in zip(wants, held, strict=True):
            self._held[want.account] = self._held.get(want.account, 0.0) + amount

    def _refusal(self, wants: Sequence[Want]) -> ApiError:
        now_s = self.desk.now_s()
        lacking: list[tuple[int, str]] = []
        for want in wants:
            allowance = self.desk.of(want.account, want.most)
            most, left = allowance.most, allowance.left(now_s)
            if left < 1:
                limit, used = want.account.limit, math.ceil(most - left)
                known_s = allowance.retry_s(now_s)
                if known_s is None and limit == REQUESTS:
                    known_s = MINUTE_S + 1  # what is held of these is just being let in, and will count for so long
                is_known = known_s is not None and not self.desk.is_alone
                after_s = max(1, math.ceil((known_s or 0) + _MARGIN_S)) if is_known else HELD_RETRY_S
                may, has = _WORDS[limit]
                may = may.format(f"{int(most)}", "" if most == 1 else "s")
                why = f"key {self.holder} may {may} ({limit}) and {has} {used}"
                lacking.append((after_s, why))
        unknown = f"what key {self.holder} has left of its limits cannot be looked up for a moment"
        after_s, why = max(lacking, default=(HELD_RETRY_S, unknown))
        message = f"{why}: try again in {after_s} s"
        return ApiError("rate_limit_exceeded", message, status=429, retryable=True, retry_after_s=after_s)

    def _purses(self) -> list[tuple[Account, float]]:
        found = [(self._account(KEY_USD), self.limits_now().agent_usd_per_day)]
        found.append((Account(ALL_KEYS, ALL_USD), self.agent_usd_per_day))
        return [(account, most) for account, most in found if most is not None]

    def _close_purse(self) -> None:
        for account in (self._account(KEY_USD), Account(ALL_KEYS, ALL_USD)):  # also of a limit that is there no more
            self._give_back(account)

    def _use(self, account: Account, most: float, amount: float, counts_s: float) -> None:
        held = min(amount, self._held.get(account, 0.0))
        self.desk.of(account, most).use(amount, self.desk.now_s(), counts_s, held=held)
        if held:
            self._held[account] -= held

    def _give_back(self, account: Account) -> None:
        amount = self._held.pop(account, 0.0)
        if amount:
            self.desk.give_back(account, amount)

    def _account(self, limit: str) -> Account:
        return Account(self.holder, limit)

    def _want(self, limit: str, amount: float) -> Want | None:
        most = getattr(self.limits_now(), limit)
        return None if most is None else Want(self._account(limit), most, min(amount, most), 1)


_WORDS: Final = {
    REQUESTS: ("send {} request{} in any minute", "has sent"),
    TOKENS: ("take {} token{} in any minute", "has taken, or holds for open requests,"),
    CONCURRENT: ("have {} request{} open at a time", "has"),
}
"""What a key may of a limit, and what it has."""


@dataclass(frozen=True, slots=True)
class KeyLimiter:
    """Holds the requests of some routes against the limits of their keys.

    Args:
        desk: of this ingress replica.
        routes: paths whose POST requests are limited.
        keys: of the file; None: nobody is asked for one.
        default: limits of keys that have none of their own.
        agent_usd_per_day: what the router agent may cost for all, USD; None: no limit.
        now: the time.
    """

    desk: AllowanceDesk
    routes: frozenset[str]
    keys: FollowedKeys | None
    default: KeyLimits
    agent_usd_per_day: float | None
    now: Callable[[], datetime] = utc_now

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return the application with the limits before it."""

        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or route_of(scope) not in self.routes or scope["method"] != "POST":
                await app(scope, receive, send)
                return
            record = record_of(scope)
            permit = scope[_PERMIT] = self._permit(key_in(scope))
            record.tokens.more = permit.take_tokens
            form = error_form(scope["path"])

            async def send_told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(permit.headers(anthropic=form == "anthropic"))
                await send(message)

            try:
                await permit.enter()
            except ApiError as error:
                record.code = error.code
                await error_response(error, request_id_of(scope), form)(scope, receive, send_told)
                return
            try:
                await app(scope, receive, send_told)
            finally:
                permit.close()

        return limited

    def _permit(self, key: Key | None) -> Permit:
        holder, limits_now = "" if key is None else key.name, partial(self._limits, key)
        return Permit(self.desk, holder, limits_now, self.agent_usd_per_day, self.now)

    def _limits(self, key: Key | None) -> KeyLimits:
        """Return the limits of a key as the file has them now."""
        ring = None if self.keys is None else self.keys.ring
        return NO_LIMITS if key is None or ring is None else ring.limits(key, self.default, self.now())


def permit_of(scope: Scope) -> Permit:
    """Return the permit of a request of a route that is limited."""
    permit: Permit = scope[_PERMIT]
    return permit


def duration(seconds: float) -> str:
    """Return a time as OpenAI's headers write it: `120ms`, `1s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    parts = [f"{hours}h"] * (hours > 0) + [f"{minutes}m"] * (whole >= 60) + [f"{whole % 60}s"]
    return "".join(parts)


def _seconds_left_of_day(now: datetime) -> float:
    midnight = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
    return (midnight - now).total_seconds()
