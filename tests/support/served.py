"""An ASGI application on a loopback port, for tests of programs that are HTTP clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

_ENDS_WITHIN_S = 20.0


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve the application in a thread with its own event loop; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, lifespan="off"))
        thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listener]),), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(_ENDS_WITHIN_S)
            assert not thread.is_alive()
