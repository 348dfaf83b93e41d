"""The fork server: what it forks, what it declines, and that it leaves nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray
from ray._private import services

from raysync import config
from raysync.cluster.ray_private import fork_server, worker_process
from raysync.cluster.ray_private.fork_server import (
    BLOCKING,
    ForkServer,
    can_fork,
    forked_by,
    started_early,
)

HOLDER = """
import sys
from raysync.cluster.ray_private.fork_server import ForkServer
server = ForkServer()
print(server.pid, server.worker_program.parent, flush=True)
sys.stdin.read()
"""


COMMAND = """
import json, os
before = dict(os.environ)
import raysync.cluster.session
from raysync import config
from raysync.training.preparation import prepare
prepare(config.validate({}))
print(json.dumps(dict(os.environ.items() - before.items())))
"""


@pytest.fixture(scope="module")
def bare():
    """The environment of a command that has not imported anything."""
    return {name: os.environ[name] for name in os.environ if not name.startswith("KMP_")}


@pytest.fixture(scope="module")
def server(bare):
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - bare.keys():
            patch.delenv(name)
        server = ForkServer()
    yield server
    folder = server.worker_program.parent
    server.close()
    assert not folder.exists()
    assert not psutil.pid_exists(server.pid)


def asked(program: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return what becomes of a worker process whose arguments Ray's program refuses: that leaves
    with status 2, and what hands itself over with 0.
    """
    return subprocess.run(
        [sys.executable, program, "--nonsense"],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=False,
    )


@pytest.mark.parametrize(
    "variables", [{}, {"RAYSYNC_MARK": "1", "MALLOC_ARENA_MAX": "1", **BLOCKING}]
)
def test_a_worker_process_is_forked_with_the_files_of_the_one_that_asked(server, variables):
    done = asked(server.worker_program, **variables)
    assert done.returncode == 0
    assert "usage: default_worker.py" in done.stderr  # of the fork: capturing ends when it does


def test_the_threads_of_what_is_forked_block(server):
    """As a server wants it: its variable is no hindrance, so it must have its effect."""
    assert BLOCKING.items() <= psutil.Process(server.pid).environ().items()


def test_what_the_command_has_imported_since_is_no_hindrance(server, bare):
    """The server is started before its imports, some of which set variables, and Ray after."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], env=bare, capture_output=True, text=True, check=True
    )
    variables = json.loads(done.stdout.splitlines()[-1])
    assert variables, "there is nothing to hinder it"
    assert asked(server.worker_program, **variables).returncode == 0


@pytest.mark.parametrize(
    "variable", ["OMP_NUM_THREADS", *BLOCKING, "PYTORCH_CUDA_ALLOC_CONF", "TORCH_CUDA_SANITIZER"]
)
def test_a_variable_that_is_read_before_an_import_is_not_for_a_fork(server, variable):
    done = asked(server.worker_program, **{variable: "7"})
    assert done.returncode == 2
    assert "usage: default_worker.py" in done.stderr


CUDA_IN_FORKS = """
import torch
from raysync.cluster.ray_private.fork_server import forks_have_cuda
for is_bad in (False, True):
    torch.cuda._is_in_bad_fork = lambda: is_bad
    print(forks_have_cuda())
"""


def test_a_server_that_has_initialised_cuda_knows_that_its_forks_cannot_use_it():
    command = [sys.executable, "-c", CUDA_IN_FORKS]
    assert subprocess.check_output(command, text=True).split() == ["True", "False"]


def test_without_a_fork_server_the_program_is_the_worker_process():
    assert asked(Path(worker_process.__file__)).returncode == 2


def old(node, arguments):
    """Start a raylet without naming the program of its workers."""


@pytest.mark.parametrize(
    ("is_linux", "start_raylet"), [(True, old), (True, None), (False, services.start_raylet)]
)
def test_where_nothing_can_be_forked(monkeypatch, is_linux, start_raylet):
    monkeypatch.setattr(fork_server, "IS_LINUX", is_linux)
    monkeypatch.setattr(services, "start_raylet", start_raylet)
    assert not can_fork()


def test_ray_is_told_the_program_of_its_workers_only_while_its_cluster_starts(server, monkeypatch):
    def start_raylet(address, worker_path="rays_own.py", *, number=0):
        return address, worker_path, number

    monkeypatch.setattr(fork_server, "IS_LINUX", True)
    monkeypatch.setattr(services, "start_raylet", start_raylet)
    assert can_fork()
    with forked_by(server):
        assert services.start_raylet("a", number=1) == ("a", str(server.worker_program), 1)
    assert services.start_raylet is start_raylet


def test_a_server_is_started_early_where_a_private_cluster_will_be(monkeypatch):
    monkeypatch.setattr(fork_server, "IS_LINUX", True)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    private = config.validate({})
    with started_early(private, None) as server:
        assert psutil.pid_exists(server.pid)
        folder = server.worker_program.parent
    assert not folder.exists()
    assert not psutil.pid_exists(server.pid), "although it has not imported all"
    for settings, address in (
        ({}, "10.0.0.1:6379"),
        ({"cluster": {"address": "10.0.0.1:6379"}}, None),
        ({"engine": "virtual"}, None),
        ({"cluster": {"fork_workers": False}}, None),
    ):
        with started_early(config.validate(settings), address) as server:
            assert server is None
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with started_early(private, None) as server:
        assert server is None


def test_the_server_ends_with_a_process_that_is_killed(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid, folder = holder.stdout.readline().split()
    server = psutil.Process(int(pid))
    holder.kill()
    holder.communicate()
    psutil.wait_procs([server], timeout=30)
    assert not server.is_running()
    assert not Path(folder).exists()
