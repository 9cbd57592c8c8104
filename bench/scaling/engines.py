"""The engines of a tier, event by event: what happens in them between two decisions of a policy.

Requests wait in one queue, first come, first served (Serve's handles), and go to the less busy of two random replicas
(Serve's power of two choices). A replica prefills its prompts one after the other, in chunks, as vLLM does: each
chunk's step also advances the decoding requests by a token. Without prompts, every step of the batch advances each by a
token.

`advance` is compiled (numba) for long traces. It also runs as it stands, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, inf
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numba.extending import register_jitable
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Function = TypeVar("_Function", bound=Callable[..., Any])

GONE: Final = 0
STARTING: Final = 1
SERVING: Final = 2
LEAVING: Final = 3


class Requests(NamedTuple):
    """All requests of a trace, in the order of their arrival."""

    arrival_s: Floats
    prompt_tokens: Floats
    completion_tokens: Floats
    prefill_s: Floats
    begun_s: Floats
    """When a replica took it; infinite: not yet."""
    first_s: Floats
    """When its first token came; infinite: not yet."""


class Replicas(NamedTuple):
    """State of all replicas, by place. A place is used again after its replica has gone."""

    state: Ints
    busy: Ints
    """Requests on the replica."""
    requested_s: Floats
    ready_s: Floats
    now_s: Floats
    """Until when the replica is simulated."""
    next_s: Floats
    """When its next event happens."""
    earliest: Ints
    """A tournament by `next_s`: 1 is the winner, and place p is the leaf at half the size + p."""
    tokens: Floats
    """Tokens that a request would have decoded that was there from the beginning."""
    tokens_per_s: Floats
    """At the current speed of a decoding request."""
    kv_tokens: Floats
    """Tokens in the KV cache of the decoding requests."""
    decoding: Ints
    """Requests that decode; each has a row in the next two, in no order."""
    decoding_request: Ints
    decoding_until: Floats
    """`tokens` of the replica at its end."""
    first: Ints
    """Row of the decoding request that ends first."""
    prompts: Ints
    """Requests whose prefill has not ended: a ring from `prompts_from` on, the first one runs."""
    prompts_from: Ints
    prompt_request: Ints
    prompt_ends_s: Floats
    prompts_s: Floats
    """Prefill time of the prompts behind the first."""
    serving: Ints
    """Places of the replicas that take requests: the first `Counts.serving`."""


class Counts(NamedTuple):
    """Numbers of the tier, each in an array of one so that `advance` can change it."""

    arrived: Ints
    begun: Ints
    """Requests that a replica has taken. Those between `begun` and `arrived` are the queue."""
    serving: Ints
    free: Ints
    """Free slots of the serving replicas."""
    ended: Ints
    served_s: Floats
    """Sum of the time that the ended requests were on their replica."""
    waits: Ints
    waited_s: Floats
    """Requests whose prefill has begun, and the sum of their waits, without those that waited for a start."""
    prompts_s: Floats
    """Replica-seconds in which a serving replica had a prompt whose prefill had not ended."""
    gone_s: Floats
    """Replica-seconds of those that have gone, since `Speed.counted_from_s`."""


class Speed(NamedTuple):
    """What `Hardware` says, as arrays."""

    slots: int
    batched_tokens: int
    host_s: Floats
    pass_s: Floats
    kv_s: float
    counted_from_s: float
    latest_s: float
    """Requests whose first token would come later after their arrival are refused; infinite: none."""


def advance(requests: Requests, replicas: Replicas, counts: Counts, speed: Speed, now_s: float, until_s: float) -> None:
    """Simulate all events from `now_s` until `until_s`: arrivals before it, and ends up to it."""
    while counts.begun[0] < counts.arrived[0] and counts.free[0] > 0:
        _begin(requests, replicas, counts, speed, _choose(replicas, counts, speed), now_s)
    while True:
        index = counts.arrived[0]
        arrival_s = requests.arrival_s[index] if index < len(requests.arrival_s) else inf
        place = replicas.earliest[1]
        event_s = replicas.next_s[place]
        if event_s <= until_s and event_s <= arrival_s:
            _event(requests, replicas, counts, speed, place)
        elif arrival_s < until_s:
            counts.arrived[0] += 1
            if counts.free[0] > 0:
                _begin(requests, replicas, counts, speed, _choose(replicas, counts, speed), arrival_s)
        else:
            return


def no_counts() -> Counts:
    """Return zeros."""
    return Counts(
        arrived=np.zeros(1, int),
        begun=np.zeros(1, int),
        serving=np.zeros(1, int),
        free=np.zeros(1, int),
        ended=np.zeros(1, int),
        served_s=np.zeros(1),
        waits=np.zeros(1, int),
        waited_s=np.zeros(1),
        prompts_s=np.zeros(1),
        gone_s=np.zeros(1),
    )


def no_replicas(size: int, slots: int) -> Replicas:
    """Return places without a replica; `size` is a power of two."""
    earliest = np.zeros(2 * size, int)
    earliest[size:] = np.arange(size)
    for node in range(size - 1, 0, -1):
        earliest[node] = earliest[2 * node]
    return Replicas(
        state=np.zeros(size, int),
        busy=np.zeros(size, int),
        requested_s=np.zeros(size),
        ready_s=np.zeros(size),
        now_s=np.zeros(size),
        next_s=np.full(size, inf),
        earliest=earliest,
        tokens=np.zeros(size),
        tokens_per_s=np.zeros(size),
        kv_tokens=np.zeros(size),
        decoding=np.zeros(size, int),
        decoding_request=np.zeros((size, slots), int),
        decoding_until=np.zeros((size, slots)),
        first=np.zeros(size, int),
        prompts=np.zeros(size, int),
        prompts_from=np.zeros(size, int),
        prompt_request=np.zeros((size, slots), int),
        prompt_ends_s=np.zeros(size),
        prompts_s=np.zeros(size),
        serving=np.zeros(size, int),
    )


@cache
def compiled() -> Callable[..., None]:
    """Return `advance` as machine code; compiling takes seconds, once on a machine."""
    return cast(Callable[..., None], njit(cache=True)(advance))


def _called(function: _Function) -> _Function:
    """Let `advance` call a function when it is compiled."""
    return cast(_Function, register_jitable(function))


def _inlined(function: _Function) -> _Function:
    """Let `advance` have a small function's code when it is compiled: a call with that many arrays takes longer."""
    return cast(_Function, register_jitable(inline="always")(function))


@_called
def _choose(replicas: Replicas, counts: Counts, speed: Speed) -> int:
    """Return a replica with a free slot: the less busy of two random ones, or else the next with one."""
    serving = counts.serving[0]
    at = _mixed(2 * counts.begun[0]) % serving
    place, other = replicas.serving[at], replicas.serving[_mixed(2 * counts.begun[0] + 1) % serving]
    if replicas.busy[other] < replicas.busy[place]:
        place = other
    while replicas.busy[place] >= speed.slots:
        at = (at + 1) % serving
        place = replicas.serving[at]
    return int(place)


@_inlined
def _mixed(number: int) -> int:
    """Return 32 random bits, the same for the same number (the finaliser of MurmurHash3)."""
    number = ((number ^ (number >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    number = ((number ^ (number >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return number ^ (number >> 16)


@_called
def _begin(requests: Requests, replicas: Replicas, counts: Counts, speed: Speed, place: int, now_s: float) -> None:
    """Give the first request of the queue to a replica, or refuse it."""
    request = counts.begun[0]
    counts.begun[0] += 1
    first_s = now_s + requests.prefill_s[request]
    if replicas.prompts[place]:
        first_s = first_s + replicas.prompt_ends_s[place] - now_s + replicas.prompts_s[place]
    if first_s - requests.arrival_s[request] > speed.latest_s:
        return
    counts.free[0] -= 1
    requests.begun_s[request] = now_s
    _settle(replicas, counts, place, now_s)
    replicas.busy[place] += 1
    end = (replicas.prompts_from[place] + replicas.prompts[place]) % speed.slots
    replicas.prompt_request[place, end] = request
    replicas.prompts[place] += 1
    replicas.prompts_s[place] += requests.prefill_s[request]
    if replicas.prompts[place] == 1:
        _prefill(requests, replicas, counts, speed, place, now_s)
    _plan(replicas, speed, place)


@_called
def _prefill(requests: Requests, replicas: Replicas, counts: Counts, speed: Speed, place: int, now_s: float) -> None:
    """Begin the first prompt's prefill: its chunks, and in each a token of every decoding request."""
    request = replicas.prompt_request[place, replicas.prompts_from[place]]
    chunks = ceil(requests.prompt_tokens[request] / speed.batched_tokens)
    took_s = requests.prefill_s[request] + chunks * replicas.kv_tokens[place] * speed.kv_s
    replicas.prompts_s[place] -= requests.prefill_s[request]
    replicas.prompt_ends_s[place] = now_s + took_s
    # A step with a short prompt gives the others their token no sooner than one without.
    replicas.tokens_per_s[place] = min(chunks / took_s, _decode_per_s(replicas, speed, place))
    if replicas.ready_s[place] <= requests.arrival_s[request]:
        counts.waits[0] += 1
        counts.waited_s[0] += now_s - requests.arrival_s[request]


@_called
def _event(requests: Requests, replicas: Replicas, counts: Counts, speed: Speed, place: int) -> None:
    """Let a replica's next event happen: a prompt's prefill ends, or else a request."""
    now_s = replicas.next_s[place]
    _settle(replicas, counts, place, now_s)
    if replicas.prompts[place] and replicas.prompt_ends_s[place] <= now_s:
        request = replicas.prompt_request[place, replicas.prompts_from[place]]
        requests.first_s[request] = now_s
        replicas.prompts_from[place] = (replicas.prompts_from[place] + 1) % speed.slots
        replicas.prompts[place] -= 1
        left = requests.completion_tokens[request] - 1
        if left > 0:
            row = replicas.decoding[place]
            replicas.decoding_request[place, row] = request
            until = replicas.tokens[place] + left
            replicas.decoding_until[place, row] = until
            if row == 0 or until < replicas.decoding_until[place, replicas.first[place]]:
                replicas.first[place] = row
            replicas.decoding[place] += 1
            replicas.kv_tokens[place] += _context(requests, request)
        if replicas.prompts[place]:
            _prefill(requests, replicas, counts, speed, place, now_s)
        if left <= 0:
            _end(requests, replicas, counts, speed, place, request, now_s)
    else:
        row = replicas.first[place]
        request = replicas.decoding_request[place, row]
        replicas.tokens[place] = replicas.decoding_until[place, row]
        last = replicas.decoding[place] - 1
        replicas.decoding_request[place, row] = replicas.decoding_request[place, last]
        replicas.decoding_until[place, row] = replicas.decoding_until[place, last]
        replicas.decoding[place] = last
        replicas.first[place] = _first(replicas, place)
        replicas.kv_tokens[place] -= _context(requests, request)
        _end(requests, replicas, counts, speed, place, request, now_s)
    _plan(replicas, speed, place)


@_inlined
def _context(requests: Requests, request: int) -> float:
    """Return a request's mean tokens in the KV cache while it decodes."""
    return float(requests.prompt_tokens[request] + requests.completion_tokens[request] / 2)


@_called
def _end(
    requests: Requests, replicas: Replicas, counts: Counts, speed: Speed, place: int, request: int, now_s: float
) -> None:
    """End a request; its replica takes the next of the queue, or goes if it was the last of one that leaves."""
    replicas.busy[place] -= 1
    counts.ended[0] += 1
    counts.served_s[0] += now_s - requests.begun_s[request]
    if replicas.state[place] == SERVING:
        counts.free[0] += 1
        while counts.begun[0] < counts.arrived[0] and replicas.busy[place] < speed.slots:
            _begin(requests, replicas, counts, speed, place, now_s)
    elif replicas.busy[place] == 0:
        gone(replicas, counts, speed, place, now_s)


@_called
def gone(replicas: Replicas, counts: Counts, speed: Speed, place: int, now_s: float) -> None:
    """Let a replica be gone, and count its cost."""
    counts.gone_s[0] += max(0.0, now_s - max(replicas.requested_s[place], speed.counted_from_s))
    replicas.state[place] = GONE


@_inlined
def _settle(replicas: Replicas, counts: Counts, place: int, now_s: float) -> None:
    """Count the tokens that a replica has decoded since its last event, and its time with prompts."""
    took_s = now_s - replicas.now_s[place]
    replicas.tokens[place] += took_s * replicas.tokens_per_s[place]
    if replicas.prompts[place] and replicas.state[place] == SERVING:
        counts.prompts_s[0] += took_s
    replicas.now_s[place] = now_s


@_inlined
def _first(replicas: Replicas, place: int) -> int:
    """Return the row of the decoding request that ends first."""
    best = 0
    for row in range(1, replicas.decoding[place]):
        if replicas.decoding_until[place, row] < replicas.decoding_until[place, best]:
            best = row
    return best


@_inlined
def _decode_per_s(replicas: Replicas, speed: Speed, place: int) -> float:
    """Return the tokens per second of each decoding request in steps without a prompt."""
    batch = replicas.decoding[place]
    gpu_s = speed.pass_s[batch] + replicas.kv_tokens[place] * speed.kv_s
    return float(1 / max(speed.host_s[batch], gpu_s))


@_inlined
def _plan(replicas: Replicas, speed: Speed, place: int) -> None:
    """Set a replica's speed and next event, and hold the tournament again."""
    batch, next_s = replicas.decoding[place], inf
    if replicas.prompts[place] > 0:
        next_s = replicas.prompt_ends_s[place]
    elif batch > 0:
        replicas.tokens_per_s[place] = _decode_per_s(replicas, speed, place)
    else:
        replicas.tokens_per_s[place] = 0.0
    if batch > 0:
        left = max(0.0, replicas.decoding_until[place, replicas.first[place]] - replicas.tokens[place])
        next_s = min(next_s, replicas.now_s[place] + left / replicas.tokens_per_s[place])
    replicas.next_s[place] = next_s
    node = (len(replicas.earliest) // 2 + place) // 2
    while node > 0:
        play(replicas, node)
        node //= 2


@_inlined
def play(replicas: Replicas, node: int) -> None:
    """Let the earlier of a node's two replicas win there."""
    one, other = replicas.earliest[2 * node], replicas.earliest[2 * node + 1]
    replicas.earliest[node] = one if replicas.next_s[one] <= replicas.next_s[other] else other
