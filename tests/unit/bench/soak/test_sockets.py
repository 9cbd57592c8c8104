"""A connection of another process is shut down from outside; the process goes on."""

from __future__ import annotations

import socket
import subprocess
import sys

import psutil
import pytest

from bench.soak.sockets import connections_to, shut_down, why_not

READER = """
import socket, sys
streams = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(2)]
print("connected", flush=True)
print([stream.recv(1) for stream in streams], flush=True)
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_both_ends_of_a_connection_see_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", READER, port], stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            ours = [server.accept()[0] for _ in range(2)]
            assert reader.stdout.readline() == "connected\n"
            process = psutil.Process(reader.pid)
            [(client, fds)] = connections_to(psutil.Process(), [process]).items()
            assert (client, len(fds)) == (process, 2)
            with socket.socket() as unconnected:
                gone = [unconnected.fileno()]
                assert shut_down(psutil.Process(), gone) == 0  # not connected
            assert shut_down(psutil.Process(), gone) == 0  # closed since it was listed
            assert shut_down(process, [0, *fds]) == 2  # the first is no connection
            assert reader.stdout.readline() == "[b'', b'']\n"
            for connection in ours:
                with connection:
                    assert connection.recv(1) == b""
        assert reader.returncode == 0
