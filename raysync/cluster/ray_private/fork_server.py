"""A process that has imported torch, from which a private cluster forks its worker processes.

`python -m raysync.cluster.ray_private.fork_server FD FOLDER` ends with its parent process, and
removes the folder. It is optional: without it, a worker process imports for itself.
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

# The modules that a worker process finds imported. None imports Ray, whose library reads the
# environment of a worker as it is loaded.
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
# imported by torch with the first optimizer; beside Triton it initialises CUDA
OPTIMIZERS = "torch._dynamo"
# the largest request: arguments and environment, of which the kernel allows 128 KiB a string
REQUEST_BYTES = 1 << 20
# prefixes of variables that a process reads at its start, or with the import of torch, such as the
# GPU allocator's, and the sanitizer's
READ_EARLY = (
    *("GLIBC_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON"),
    *("PYTORCH_", "TORCH_"),
)
# Makes torch's threads block while they wait for one another. By default they spin, which slows
# operations on shared cores many times.
BLOCKING = {"OMP_WAIT_POLICY": "passive"}
# The values of these variables if a request lacks them: the server sets the last, and scikit-learn
# the others when imported, perhaps after the server's start.
ASSUMED = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE", **BLOCKING}
# the only variable of READ_EARLY that can be set later, and its number for `mallopt` (glibc)
ARENAS, M_ARENA_MAX = "MALLOC_ARENA_MAX", -8
WORKERS_PROGRAM = "worker_path"  # Ray's argument for the program of a worker process
# on macOS a fork of a process that has imported torch is not safe
IS_LINUX = sys.platform == "linux"

SHORT_FOLDER = "/tmp"  # the temporary folder if the system's path is too long for sockets
# Ray's longest socket path, below the temporary folder
LONGEST_SOCKET = "ray/session_2026-11-25_13-17-26_804123_4194304/sockets/plasma_store"
LONGEST_PATH_BYTES = 107 if IS_LINUX else 103  # the system's limit for socket paths


def holds_sockets(folder: str) -> bool:
    """Whether a temporary folder can hold Ray's sockets: their paths must be short, and ASCII."""
    path = f"{folder}/{LONGEST_SOCKET}"
    return path.isascii() and len(path) <= LONGEST_PATH_BYTES


class ForkServer:
    """The server process, and the folder with its socket, which only this user can enter."""

    def __init__(self) -> None:
        parent = gettempdir() if holds_sockets(gettempdir()) else SHORT_FOLDER
        self._folder = folder = Path(mkdtemp(prefix="raysync-", dir=parent))
        # starts worker processes, which wait for the imports
        self.worker_program = folder / "worker.py"
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
        return self._process.pid

    def close(self) -> None:
        """Kill the server, also while it imports; forked worker processes are left alone."""
        assert self._process.stdin is not None, "no pipe"
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        rmtree(self._folder, ignore_errors=True)


@contextmanager
def started_early(experiment: Experiment, address: str | None) -> Iterator[ForkServer | None]:
    """Start the fork server of a private cluster while this process imports torch, too.

    Yields:
        The server, for the session; None: there will be no private cluster, or it does not fork.
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
    """Whether worker processes can be forked: on Linux, if Ray accepts a program for them.

    Ray has no option for that (2.60), only an argument of an inner function.
    """
    from ray._private import services  # never imported in the server: see PRELOADED

    start_raylet = getattr(services, "start_raylet", None)
    return (
        IS_LINUX
        and start_raylet is not None
        and WORKERS_PROGRAM in signature(start_raylet).parameters
    )


@contextmanager
def forked_by(server: ForkServer) -> Iterator[None]:
    """Make a cluster started within fork its worker processes from a fork server."""
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
    """Fork worker processes until the parent process exits, or closes stdin."""
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
    """Whether a fork of this process can use CUDA: not if an import has initialised it here."""
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
    """The command line and environment of a worker process that asks to be forked."""

    executable: str
    folder: str  # the working directory of the process
    arguments: list[str]
    environment: dict[str, str]

    @classmethod
    def of(cls, data: bytes) -> ForkRequest | None:
        """Decode a request of `worker_process`; None: it was cut off."""
        executable, folder, *strings = os.fsdecode(data).split("\0")
        if "" not in strings:
            return None
        end = strings.index("")
        environment = dict(string.split("=", 1) for string in strings[end + 1 :])
        return cls(executable, folder, strings[:end], environment)

    @property
    def is_met_by_fork(self) -> bool:
        """Whether a fork of this process equals a fresh worker process."""
        present = _early_variables(os.environ)  # noqa: TID251 - of this process
        return self.executable == sys.executable and _early_variables(self.environment) == present

    def become_worker(self, files: list[int]) -> None:
        """Run Ray's worker program with stdin, stdout and stderr; never returns."""
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


def _early_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return ASSUMED | {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_EARLY) and name != ARENAS
    }


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    rmtree(sys.argv[2], ignore_errors=True)
