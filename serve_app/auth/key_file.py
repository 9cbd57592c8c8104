"""The keys file: changed by `power-lever keys`, followed by every ingress replica.

A change is written beside the file and renamed over it, so that a reader has either the old or the new one. A
Kubernetes Secret changes in the same way: kubelet renames a link.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cluster.supervision import Supervised
from router.errors import ConfigError
from serve_app.auth.keys import MOST_KEYS, KeyList, KeyRing, read_key_list, utc_now

logger = logging.getLogger("ray.serve")

READ_EVERY_S: Final = 1.0
_READ_WITHIN_S: Final = 30.0
MOST_BYTES: Final = 2_000_000
"""Of a keys file, more than `MOST_KEYS` keys have: a larger one would hold up the event loop that reads it."""


def read_keys(path: Path) -> bytes:
    """Return the bytes of a keys file.

    Raises:
        ConfigError: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"{path}: is larger than {MOST_BYTES / 1e6:g} MB, which {MOST_KEYS} keys never are")
    return raw


def load_keys(path: Path) -> KeyList:
    """Return the content of a keys file.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    return read_key_list(read_keys(path), str(path))


@contextlib.contextmanager
def changing(path: Path, *, new: bool = False) -> Iterator[None]:
    """Hold the lock of a keys file, for a change of it: a second command waits.

    Args:
        path: of the file.
        new: it need not be there yet, and its folder is made.

    Raises:
        ConfigError: it cannot be read, or its folder does not take files.
    """
    if not new:
        read_keys(path)  # before a lock file is made in the wrong folder
    try:
        if new:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not the file itself: a rename would replace it under a lock.
        with (path.parent / f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def write_keys(path: Path, listed: KeyList) -> None:
    """Replace a keys file. A new one is readable by its owner only, an old one keeps its owner and mode.

    Raises:
        OSError: the folder does not take files.
    """
    # Beside the file that a link names, or the rename would replace the link.
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            if path.exists():
                before = path.stat()
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
                with contextlib.suppress(PermissionError):  # root alone may give it to the one who reads it
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
            file.write(listed.model_dump_json(indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


class FollowedKeys:
    """The keys of a file, read again every second. A broken file leaves the last good keys in force.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.ring: KeyRing | None = None
        """None: the file was never readable, and nobody can be let in."""
        self._path = path
        self._seen = b""
        # A broken file is no reason to replace the process, which may be the last that knows the keys.
        self.work = Supervised("ingress: keys file", self._round, within_s=_READ_WITHIN_S, away=(ConfigError,))
        with contextlib.suppress(ConfigError):  # the first round says so
            self._take(read_keys(path))

    async def refresh(self) -> None:
        """Read the file.

        Raises:
            ConfigError: it cannot be read, or is no keys file; the last good keys stay.
        """
        # Whole, and not its times alone: a file server's may come late. In a thread, since one may hang.
        self._take(await asyncio.to_thread(read_keys, self._path))

    async def _round(self) -> None:
        await self.refresh()
        await asyncio.sleep(READ_EVERY_S)

    def _take(self, raw: bytes) -> None:
        if self.ring is not None and raw == self._seen:
            return
        listed = read_key_list(raw, str(self._path))
        self.ring, self._seen = KeyRing.of(listed, utc_now()), raw
        logger.info("keys file %s: %d keys", self._path, len(listed.keys))
