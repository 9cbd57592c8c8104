"""An incremental HTTP/1.1 response decoder: head, then body in chunks, by length or until the connection closes.

The client shares two cores with the server that it measures, and general clients spend more on a token event than the
server does. `httptools` is fast enough, but uvicorn prefers it if it is installed, and then answers HTTP/1.0 wrongly
(docs/decisions), so it must not be in the same environment. A proxy may cut a chunk in the middle of an event, so the
chunked framing must be undone.
"""

from __future__ import annotations

from typing import Final

_MAX_HEAD_BYTES: Final = 65536
_MAX_CHUNK_LINE_BYTES: Final = 1024


class HttpError(Exception):
    """The peer sent something that is not an HTTP/1.1 response."""


class ResponseDecoder:
    """Takes bytes from the socket and returns body bytes. `status` is 0 until the head has arrived."""

    __slots__ = ("_buffer", "_chunked", "_left", "done", "status")

    def __init__(self) -> None:
        self.status = 0
        self.done = False
        self._buffer = b""
        self._chunked = False
        self._left: int | None = None
        """Bytes left of this chunk (with its line end) or of this body; None if unknown."""

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes in `data`."""
        if self.done:
            return b""
        if not self.status:
            head, separator, data = (self._buffer + data).partition(b"\r\n\r\n")
            if not separator:
                if len(head) > _MAX_HEAD_BYTES:
                    raise HttpError("response head does not end")
                self._buffer = head
                return b""
            self._buffer = b""
            self._read_head(head)
        return self._unchunk(data) if self._chunked else self._cut(data)

    def _read_head(self, head: bytes) -> None:
        status_line, *lines = head.split(b"\r\n")
        parts = status_line.split(b" ", 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
            raise HttpError(f"bad status line {status_line[:80]!r}")
        self.status = int(parts[1])
        for line in lines:
            name, _, value = line.partition(b":")
            match name.strip().lower():
                case b"transfer-encoding":
                    self._chunked = value.strip().lower() == b"chunked"
                case b"content-length":
                    self._left = int(value)
        if self._chunked:
            self._left = None
        elif self._left == 0:
            self.done = True

    def _cut(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        body = data[: self._left]
        self._left -= len(body)
        self.done = self._left == 0
        return body

    def _unchunk(self, data: bytes) -> bytes:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        pieces: list[bytes] = []
        position, end = 0, len(data)
        while position < end and not self.done:
            if self._left is None:
                line_end = data.find(b"\r\n", position)
                if line_end < 0:
                    self._buffer = data[position:]
                    if len(self._buffer) > _MAX_CHUNK_LINE_BYTES:
                        raise HttpError("chunk size line does not end")
                    break
                size = self._chunk_size(data[position:line_end])
                position = line_end + 2
                if size == 0:
                    self.done = True  # ignore trailers
                    break
                self._left = size + 2
            take = min(self._left, end - position)
            text = min(max(self._left - 2, 0), take)
            pieces.append(data[position : position + text])
            position += take
            self._left = self._left - take or None
        return b"".join(pieces)

    @staticmethod
    def _chunk_size(line: bytes) -> int:
        try:
            return int(line.split(b";", 1)[0], 16)
        except ValueError as error:
            raise HttpError(f"bad chunk size {line[:80]!r}") from error
