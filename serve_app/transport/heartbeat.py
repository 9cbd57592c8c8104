"""A sign of life of each replica, once a second, on a connection of its own to each ingress replica that it answers.

A replica whose process or node is gone without notice, or that the network no longer reaches, closes no connection: its
streams would wait until the request's time is over. The replica's side is a thread, since an event loop that stalls for
a while (a long prompt is tokenized, a library holds it) is no death; one that stalls for minutes is.

HeartbeatThread   the replica's side
Heartbeats        the ingress's side: which replicas were not heard of for too long
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

BEAT_EVERY_S: Final = 1.0
LOST_AFTER_S: Final = 5.0
"""A replica that was not heard of for so long is lost, s."""
BEAT: Final = b"."
_SEND_S: Final = 0.5
"""Longest wait for an ingress to take a connection or a beat, s: the other ingress replicas wait meanwhile."""


class BeatTo(NamedTuple):
    """An ingress replica that expects beats."""

    host: str
    port: int
    greeting: bytes
    """What the connection begins with."""


class HeartbeatThread:
    """Beats to every ingress replica that has a stream here.

    Args:
        stalled_after_s: without a `pulse` for so long it beats no more, s.
        clock: monotonic, s.
    """

    def __init__(self, stalled_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stalled_after_s = stalled_after_s
        self._clock = clock
        self._pulsed_s = clock()
        self._lock = threading.Lock()
        self._streams: Counter[BeatTo] = Counter()
        self._connections: dict[BeatTo, socket.socket] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def pulse(self) -> None:
        """Note that the event loop goes on."""
        self._pulsed_s = self._clock()

    def stop(self) -> None:
        """End, and close the connections."""
        self._stopped.set()

    @contextlib.contextmanager
    def stream_to(self, ingress: BeatTo) -> Iterator[None]:
        """Beat to this ingress replica while one of its streams is here."""
        with self._lock:
            self._streams[ingress] += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams[ingress] -= 1
                if not self._streams[ingress]:
                    del self._streams[ingress]

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_EVERY_S):
            with self._lock:
                wanted = set(self._streams)
            for ingress in set(self._connections) - wanted:
                self._connections.pop(ingress).close()
            if self._clock() - self._pulsed_s > self._stalled_after_s:
                continue
            for ingress in wanted:
                self._beat(ingress)
        for connection in self._connections.values():
            connection.close()

    def _beat(self, ingress: BeatTo) -> None:
        try:
            if ingress not in self._connections:
                self._connections[ingress] = socket.create_connection(ingress[:2], timeout=_SEND_S)
                self._connections[ingress].sendall(ingress.greeting)
            self._connections[ingress].sendall(BEAT)
        except OSError:
            # It is gone or reads nothing; if it is there, the next round connects again.
            if (broken := self._connections.pop(ingress, None)) is not None:
                broken.close()


class Heartbeats:
    """Which replicas were heard of, by the ingress's clock.

    Args:
        clock: monotonic, s.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard_s: dict[str, float] = {}
        self._checked_s = clock()

    def heard(self, replica: str) -> None:
        """Note a sign of life; a connection is one too."""
        self._heard_s[replica] = self._clock()

    def lost(self, replicas: set[str]) -> set[str]:
        """Return those of the replicas that are lost, and forget all others. Call it about once a second.

        After a pause of this process nobody is lost yet: what was sent meanwhile has not been read.
        """
        now_s = self._clock()
        paused_s = max(0.0, now_s - self._checked_s - 2 * BEAT_EVERY_S)
        self._checked_s = now_s
        self._heard_s = {name: self._heard_s.get(name, now_s) + paused_s for name in replicas}
        return {name for name, heard_s in self._heard_s.items() if now_s - heard_s > LOST_AFTER_S}
