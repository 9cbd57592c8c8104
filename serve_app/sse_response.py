"""A streaming response that closes its source whenever it ends: done, failed, or left by the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class ClosingStream(StreamingResponse):
    """Starlette's streaming response, but the body generator is closed at once, not when it is collected.

    Args:
        body: async generator of pieces.
        status: HTTP status.
        headers: a mapping, or raw pairs to send as they are.
        close: closes what the body reads from; a body that the client did not wait for never ran, and cannot.
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
        try:
            await super().__call__(scope, receive, send)
        finally:
            for close in (getattr(self._body, "aclose", None), self._close):
                if close is not None:
                    await close()
