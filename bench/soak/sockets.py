"""Shut connections of another process down, as a broken network or an impatient proxy does; the process goes on."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Sequence
from typing import Final

import psutil
from psutil import Process

_PIDFD_GETFD: Final = 438
"""Number of the system call on every architecture of Linux; since 5.6."""
_ENDED: Final = frozenset({errno.EBADF, errno.ENOTSOCK, errno.ENOTCONN, errno.ESRCH})
"""Of a descriptor whose stream has ended since it was listed, or whose process has."""


def connections_to(server: Process, clients: Sequence[Process]) -> dict[Process, list[int]]:
    """Return file descriptors of the clients' connections to one port of the server, by client.

    The port is the one with the most connections: the token channel has one for each stream, Ray's own ports one for
    each process.
    """
    listening = {conn.laddr.port for conn in _connections(server) if conn.status == psutil.CONN_LISTEN}
    found = {
        client: [(conn.fd, conn.raddr.port) for conn in _connections(client) if conn.status == psutil.CONN_ESTABLISHED]
        for client in clients
    }
    ports = Counter(port for pairs in found.values() for _, port in pairs if port in listening)
    if not ports:
        return {}
    [(channel, _)] = ports.most_common(1)
    fds = {client: [fd for fd, port in pairs if port == channel and fd >= 0] for client, pairs in found.items()}
    return {client: some for client, some in fds.items() if some}


def _connections(process: Process) -> list[psutil._common.pconn]:
    try:
        return list(process.net_connections(kind="tcp"))
    except psutil.Error:
        return []


def shut_down(process: Process, fds: Sequence[int]) -> int:
    """Shut these connections of a process down in both directions; return how many were still open.

    Raises:
        OSError: it needs the right to trace the process, and Linux 5.6 (`why_not`).
    """
    shut = 0
    for fd in fds:
        try:
            with socket.socket(fileno=_copy(process.pid, fd)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in _ENDED:
                raise
        else:
            shut += 1
    return shut


def why_not() -> str | None:
    """Return why connections of a process that this one started cannot be shut down here; None: they can."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        try:
            os.close(_copy(child.pid, 0))
        except OSError as error:
            return f"connections of another process cannot be shut down here: {error.strerror}"
    return None


def _copy(pid: int, fd: int) -> int:
    """Return a copy of another process's descriptor."""
    pidfd = os.pidfd_open(pid)
    try:
        copy: int = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, fd, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return copy
    finally:
        os.close(pidfd)
