"""The fork server: what it forks, what it declines, and that it leaves nothing."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from raysync.cluster import worker_process
from raysync.cluster.fork_server import ForkServer

HOLDER = """
import sys
from raysync.cluster.fork_server import ForkServer
server = ForkServer()
print(server.pid, server.worker_program.parent, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server():
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


@pytest.mark.parametrize("variables", [{}, {"RAYSYNC_MARK": "1"}, {"MALLOC_ARENA_MAX": "1"}])
def test_a_worker_process_is_forked_with_the_files_of_the_one_that_asked(server, variables):
    done = asked(server.worker_program, **variables)
    assert done.returncode == 0
    assert "usage: default_worker.py" in done.stderr  # of the fork: capturing ends when it does


def test_a_variable_that_is_read_before_an_import_is_not_for_a_fork(server):
    done = asked(server.worker_program, OMP_NUM_THREADS="7")
    assert done.returncode == 2
    assert "usage: default_worker.py" in done.stderr


def test_without_a_fork_server_the_program_is_the_worker_process():
    assert asked(Path(worker_process.__file__)).returncode == 2


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
