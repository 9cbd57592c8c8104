"""A stream that fails before its first token is an HTTP error.

vLLM sends status 200 for a stream and then checks what depends on the engine (structured outputs, logprobs, what does
not go with drafts), so a refusal comes as the first event. An error status is what clients expect, and what the same
request gets without `stream`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import orjson

from serve_app.transport.asgi_call import ResponseStart

_ERROR: Final = b'data: {"error"'
"""How vLLM's error event begins."""


async def errors_first(
    items: AsyncGenerator[ResponseStart | bytes, None],
) -> AsyncGenerator[ResponseStart | bytes, None]:
    """The same response; instead of a stream whose first event is an error, that error with its status.

    The start of a response is held back until its first piece is there.
    """
    start: ResponseStart | None = None
    async with aclosing(items):
        async for item in items:
            if isinstance(item, ResponseStart):
                start = item
                continue
            if start is not None:
                if start.status == 200 and item.startswith(_ERROR):
                    body = orjson.loads(item.split(b"\n\n", 1)[0].removeprefix(b"data: "))
                    yield ResponseStart(body["error"]["code"], [(b"content-type", b"application/json")])
                    yield orjson.dumps(body)
                    return
                yield start
                start = None
            yield item
        if start is not None:
            yield start
