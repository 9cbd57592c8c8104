"""The HTTP response of a stream: it closes its source whenever it ends (done, failed, or left by the client)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

logger = logging.getLogger("ray.serve")

SSE_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
WRITE_WITHIN_S: Final = 60.0
"""A client that reads nothing for so long counts as gone, s. The buffers of the sockets, some megabytes, fill first."""


class _StalledError(Exception):
    """The client reads nothing."""


class StreamResponse(StreamingResponse):
    """Starlette's streaming response, which also closes the body generator at once and limits the time of each write.

    Args:
        body: async generator of pieces.
        status: HTTP status.
        headers: a mapping, or raw pairs to send as they are.
        close: closes what the body reads from. The body cannot do that if it never began.
    """

    def __init__(
        self,
        body: AsyncIterator[bytes],
        status: int,
        headers: Mapping[str, str] | Sequence[tuple[bytes, bytes]],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(body, status_code=status, headers=dict(headers) if isinstance(headers, Mapping) else None)
        if not isinstance(headers, Mapping):
            self.raw_headers = list(headers)
        self._body = body
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; the source is closed when this returns or raises."""

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(WRITE_WITHIN_S):
                    await send(message)
            except TimeoutError as error:
                raise _StalledError from error

        try:
            await super().__call__(scope, receive, send_in_time)
        except _StalledError:
            # The server cuts the connection of a response that is incomplete.
            logger.warning("a client read nothing for %g s: its request is ended", WRITE_WITHIN_S)
        finally:
            for close in (getattr(self._body, "aclose", None), self._close):
                if close is not None:
                    await close()
