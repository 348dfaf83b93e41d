"""The program that a private cluster starts for each Ray worker process.

It hands over to a fork of the fork server, or becomes the worker process itself. It runs once for
each worker, so it imports only the standard library.
"""

import os
import runpy
import socket
import sys
from pathlib import Path

RAYS_PROGRAM = "ray._private.workers.default_worker"  # Ray's own program (Ray 2.60)
# the fork server's socket, in the folder from which this program was started
SOCKET = "fork-server"


def hand_over(folder: Path) -> bool:
    """Ask the fork server of that folder for a process; return whether it has started one."""
    variables = [f"{name}={value}" for name, value in os.environ.items()]  # noqa: TID251 - its own
    strings = [sys.executable, str(Path.cwd()), *sys.argv, "", *variables]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.connect(str(folder / SOCKET))
            socket.send_fds(server, [os.fsencode("\0".join(strings))], [0, 1, 2])
            return server.recv(1) != b""
    except OSError:
        return False


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, which holds modules of a package
    if not hand_over(Path(sys.argv[0]).parent):
        runpy.run_module(RAYS_PROGRAM, run_name="__main__", alter_sys=True)
