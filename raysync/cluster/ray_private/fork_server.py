"""A process that has imported torch, from which a private cluster forks its worker processes.

An actor needs torch, whose import takes a core one to two seconds: those of seven actors on two
cores were most of what a user waited for. Here it is imported once, while Ray starts. Ray itself is
imported by each process on its own: its library reads the environment of a worker as it is loaded.

`python -m raysync.cluster.ray_private.fork_server FD FOLDER` is the server. It ends with the
process that started it, however that ends, and removes the folder.
Nothing here depends on it: where it is not there, or is gone, a worker process imports for itself.
"""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING

from raysync.cluster.ray_private import worker_process
from raysync.cluster.ray_private.worker_process import RAYS_PROGRAM, SOCKET

if TYPE_CHECKING:
    from raysync.config import Experiment

PRELOADED = (
    "raysync.engine.driver",
    "raysync.training.data.batch_reader",
    "raysync.training.evaluation",
    "raysync.training.worker.gradient",
    "raysync.training.server.model_server",
    "raysync.training.preparation",
    # what Ray imports
    "asyncio",
    "jsonschema",
    "requests",
)
"""What a worker process finds imported. Nothing of it imports Ray."""
OPTIMIZERS = "torch._dynamo"
"""What torch imports with the first optimizer. Beside Triton it initialises CUDA."""
REQUEST_BYTES = 1 << 20
"""The largest request: arguments and environment, of which the kernel allows 128 KiB a string."""
READ_EARLY = (
    *("GLIBC_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON"),
    *("PYTORCH_", "TORCH_"),
)
"""How the variables begin that a process reads when it starts, or when torch is imported: such as
the allocator of a GPU's memory, and its sanitizer."""
BLOCKING = {"OMP_WAIT_POLICY": "passive"}
"""The one of them with which torch's threads block while they wait for one another. By default they
spin, and where they share a core with other processes, an operation takes many times as long."""
ASSUMED = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE", **BLOCKING}
"""Those that no worker process needs to have: what scikit-learn sets when it is imported, as the
command may have done since the server was started, and what the server has of its own."""
ARENAS, M_ARENA_MAX = "MALLOC_ARENA_MAX", -8
"""The one of them that can also be set later, and its number for `mallopt` (glibc)."""
WORKERS_PROGRAM = "worker_path"
"""The argument of Ray's that names the program of a worker process."""
IS_LINUX = sys.platform == "linux"
"""On macOS a fork of a process that has imported torch is not safe."""

SHORT_FOLDER = "/tmp"
"""The temporary folder where that of the system cannot hold sockets."""
LONGEST_SOCKET = "ray/session_2026-11-25_13-17-26_804123_4194304/sockets/plasma_store"
"""The longest path of a socket of Ray, below the temporary folder."""
LONGEST_PATH_BYTES = 107 if IS_LINUX else 103
"""The longest path of a socket that the system takes."""


def holds_sockets(folder: str) -> bool:
    """Say whether Ray can have its sockets in a temporary folder: their paths must be short, and
    ASCII.
    """
    path = f"{folder}/{LONGEST_SOCKET}"
    return path.isascii() and len(path) <= LONGEST_PATH_BYTES


class ForkServer:
    """The server process, and the folder with its socket, which only this user can enter."""

    def __init__(self) -> None:
        own = gettempdir()
        own = own if holds_sockets(own) else SHORT_FOLDER
        self._folder = folder = Path(mkdtemp(prefix="raysync-", dir=own))
        self.worker_program = folder / "worker.py"
        """The program to start worker processes with; what asks early waits for the imports."""
        self.worker_program.symlink_to(worker_process.__file__)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(folder / SOCKET))
            listening.listen(socket.SOMAXCONN)
            descriptor = listening.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(descriptor), str(folder)],
                stdin=subprocess.PIPE,  # its end is the end of this process
                pass_fds=[descriptor],
                start_new_session=True,  # Ctrl-C is for the command alone
                env=BLOCKING | os.environ,  # noqa: TID251
            )

    @property
    def pid(self) -> int:
        """The process id of the server; the worker processes are its children."""
        return self._process.pid

    def close(self) -> None:
        """End the server, also one that still imports; the worker processes that it forked are left
        alone.
        """
        assert self._process.stdin is not None, "no pipe"
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        rmtree(self._folder, ignore_errors=True)


@contextmanager
def started_early(experiment: Experiment, address: str | None) -> Iterator[ForkServer | None]:
    """Start the fork server of the private cluster that an experiment will need, so that it imports
    torch while this process does, on another core.

    Args:
        experiment: the experiment to run.
        address: the cluster to join where `cluster.address` is `auto`; None: a private one.

    Yields:
        The server, for the session to use; None: there will be no private cluster, or it does not
        fork.
    """
    cluster, ray = experiment.cluster, sys.modules.get("ray")  # not imported: not connected
    is_connected = ray is not None and ray.is_initialized()
    is_private = cluster.address == "local" or (cluster.address == "auto" and address is None)
    is_needed = experiment.engine == "ray" and is_private and not is_connected
    if not (is_needed and cluster.fork_workers and IS_LINUX):
        yield None
        return
    server = ForkServer()
    try:
        yield server
    finally:
        server.close()


def can_fork() -> bool:
    """Say whether worker processes can be forked here: on Linux, where a fork of a process that has
    imported torch is safe, and with a Ray that can be told their program.

    Ray has no option for that (2.60), only an argument of an inner function.
    """
    from ray._private import services  # never in the server: see above

    start_raylet = getattr(services, "start_raylet", None)
    return (
        IS_LINUX
        and start_raylet is not None
        and WORKERS_PROGRAM in signature(start_raylet).parameters
    )


@contextmanager
def forked_by(server: ForkServer) -> Iterator[None]:
    """Make a cluster that is started within start its worker processes by a fork server."""
    from ray._private import services

    start_raylet = services.start_raylet

    def start(*args: object, **options: object) -> object:
        call = signature(start_raylet).bind(*args, **options)
        call.arguments[WORKERS_PROGRAM] = str(server.worker_program)
        return start_raylet(*call.args, **call.kwargs)

    services.start_raylet = start
    try:
        yield
    finally:
        services.start_raylet = start_raylet


def serve(listening: socket.socket) -> None:
    """Fork worker processes until the process that started this one has gone, or closes stdin."""
    for name in PRELOADED if find_spec("triton") else (*PRELOADED, OPTIMIZERS):
        import_module(name)
    with suppress(ValueError):
        sys.path.remove(str(Path.cwd()))  # by `python -m`
    gc.collect()
    gc.freeze()  # else a collection in a worker process would copy every page
    may_fork = forks_have_cuda()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing here waits for a worker process
    while True:
        ready, _, _ = select.select([sys.stdin, listening], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listening.accept()
        with connection:
            data, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
            request = ForkRequest.of(data) if len(files) == 3 else None
            if may_fork and request is not None and request.is_met_by_fork and _fork() == 0:
                listening.close()
                connection.send(b"\1")
                connection.close()
                request.become_worker(files)
            for file in files:
                os.close(file)


def forks_have_cuda() -> bool:
    """Say whether a fork of this process can use CUDA: not if an import has initialised it here."""
    import torch

    child = _fork()
    if child == 0:
        os._exit(torch.cuda._is_in_bad_fork())
    _, status = os.waitpid(child, 0)
    return status == 0


def _fork() -> int:
    with warnings.catch_warnings():
        # from Python 3.12: the threads are OpenBLAS's, which is prepared for forks
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        return os.fork()


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What a worker process was started with that asks to be forked instead."""

    executable: str
    folder: str
    """The working directory of the process."""
    arguments: list[str]
    environment: dict[str, str]

    @classmethod
    def of(cls, data: bytes) -> ForkRequest | None:
        """Read what `worker_process` sends; None: it was cut off."""
        executable, folder, *strings = os.fsdecode(data).split("\0")
        if "" not in strings:
            return None
        end = strings.index("")
        environment = dict(string.split("=", 1) for string in strings[end + 1 :])
        return cls(executable, folder, strings[:end], environment)

    @property
    def is_met_by_fork(self) -> bool:
        """Whether a fork of this process is what the program itself would have become."""
        own = _read_early(os.environ)  # noqa: TID251 - what this process began with
        return self.executable == sys.executable and _read_early(self.environment) == own

    def become_worker(self, files: list[int]) -> None:
        """Run Ray's program of a worker process with stdin, stdout and stderr; it does not
        return.
        """
        os.setpgid(0, 0)  # Ray ends the process group of a worker with it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, file in enumerate(files):
            os.dup2(file, target)
            os.close(file)
        if ARENAS in self.environment:
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, int(self.environment[ARENAS]))
        os.environ.clear()  # noqa: TID251
        os.environ.update(self.environment)  # noqa: TID251
        os.chdir(self.folder)
        sys.argv = self.arguments
        runpy.run_module(RAYS_PROGRAM, run_name="__main__", alter_sys=True)
        sys.exit()


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return ASSUMED | {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_EARLY) and name != ARENAS
    }


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    rmtree(sys.argv[2], ignore_errors=True)
