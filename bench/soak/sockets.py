"""Shut connections of another process down, as a broken network or an impatient proxy does; the process goes on."""

from __future__ import annotations

import ctypes
import os
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Final

import psutil
from psutil import Process

_PIDFD_GETFD: Final = 438
"""Number of the system call on every architecture of Linux; since 5.6."""


class SocketsError(Exception):
    """This machine does not let us."""


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


def shut_down(process: Process, fds: Sequence[int]) -> None:
    """Shut these connections of a process down in both directions.

    Raises:
        SocketsError: it needs the right to trace the process, which root has, and Linux 5.6.
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    pidfd = os.pidfd_open(process.pid)
    try:
        for fd in fds:
            copy = call(_PIDFD_GETFD, pidfd, fd, 0)
            if copy < 0:
                reason = os.strerror(ctypes.get_errno())
                raise SocketsError(f"connections of another process cannot be shut down here: {reason}")
            with socket.socket(fileno=copy) as connection:
                connection.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(pidfd)
