"""A streaming response that closes its source whenever it ends: done, failed, or left by the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

logger = logging.getLogger("ray.serve")

WRITE_WITHIN_S: Final = 60.0
"""How long a client may take nothing of what waits for it, s; then it counts as gone. The buffers of the sockets come
first, some megabytes."""


class _StalledError(Exception):
    """The client takes nothing."""


class StreamResponse(StreamingResponse):
    """Starlette's streaming response, but the body generator is closed at once, not when it is collected.

    Args:
        body: async generator of pieces.
        status: HTTP status.
        headers: a mapping, or raw pairs to send as they are.
        close: closes what the body reads from; a body that the client did not wait for never ran, and cannot.
        write_within_s: longest wait for the client to take a piece, s; then the response ends where it is.
    """

    def __init__(
        self,
        body: AsyncIterator[bytes],
        status: int,
        headers: Mapping[str, str] | Sequence[tuple[bytes, bytes]],
        close: Callable[[], Awaitable[None]] | None = None,
        write_within_s: float = WRITE_WITHIN_S,
    ) -> None:
        super().__init__(body, status_code=status, headers=dict(headers) if isinstance(headers, Mapping) else None)
        if not isinstance(headers, Mapping):
            self.raw_headers = list(headers)
        self._body = body
        self._close = close
        self._write_within_s = write_within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; the source is closed when this returns or raises."""

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(self._write_within_s):
                    await send(message)
            except TimeoutError as error:
                raise _StalledError from error

        try:
            await super().__call__(scope, receive, send_in_time)
        except _StalledError:
            # The server cuts the connection of a response that ends without its end.
            logger.warning("a client took nothing for %g s: its request is ended", self._write_within_s)
        finally:
            for close in (getattr(self._body, "aclose", None), self._close):
                if close is not None:
                    await close()
