"""Jobs: `ray job submit -- raysync ...` on a real head, which is started for these tests and gone
afterwards.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import psutil
import pytest
import yaml
from ray.job_submission import JobStatus, JobSubmissionClient
from ray.util.state import list_actors

import raysync
from raysync.record.reader import load
from tests.builders.cluster import TINY
from tests.builders.messages import tells

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "PYTHONPATH": str(Path(raysync.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}
PORTS = (
    "port",
    "dashboard-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "ray-client-server-port",
)
FILES = {
    "short": {
        "paradigm": {"name": "ssp", "staleness": 2},
        "workers": [{"count": 2, "step_s": 0.05}],
    },
    "long": {"workload": {"epochs": 100}, "workers": [{"count": 2, "step_s": 0.02}]},
    "wrong": {"modl": "mlp"},
}
DEADLINE_S = 400


class Head:
    """A running head, and what a person does with it."""

    def __init__(self, api, folder):
        self.api = api
        self.folder = folder
        self.client = JobSubmissionClient(api)

    def submit(self, command):
        working_dir = {
            "working_dir": str(self.folder),
            "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"},
        }
        return self.client.submit_job(entrypoint=command, runtime_env=working_dir)

    def log(self, job, until=None):
        """Its log up to what is waited for, or to its end."""

        async def read():
            text = ""
            async for part in self.client.tail_job_logs(job):
                text += part
                if until is not None and until in text:
                    break
            return text

        return asyncio.run(asyncio.wait_for(read(), DEADLINE_S))

    def has_actors(self, count):
        """Whether so many of raysync's actors live, now or soon: Ray hears of an end a moment
        later.
        """
        for _ in range(60):
            actors = list_actors(address=self.api, filters=[("state", "!=", "DEAD")])
            if sum(actor.class_name != "JobSupervisor" for actor in actors) == count:
                return True
            Event().wait(1)
        return False


def free_ports(names):
    """Of the system's choice, and so above those that Ray gives its workers."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return [f"--{name}={one.getsockname()[1]}" for name, one in zip(names, held, strict=True)]


def stop(process):
    """It and what it started."""
    family = [process, *psutil.Process(process.pid).children(recursive=True)]
    process.terminate()
    process.stdout.close()
    process.wait(60)
    _, alive = psutil.wait_procs(family[1:], timeout=60)
    for one in alive:
        one.kill()


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    for name, change in FILES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**TINY, **change, "name": name}))
    ports = free_ports(PORTS)
    [dashboard] = [each for each in ports if each.startswith("--dashboard-port=")]
    # For paths of sockets.
    with tempfile.TemporaryDirectory(prefix="rs", dir="/tmp", ignore_cleanup_errors=True) as short:
        options = ["--num-cpus=8", f"--temp-dir={short}", "--node-ip-address=127.0.0.1", *ports]
        process = subprocess.Popen(
            [BIN / "ray", "start", "--head", "--block", *options],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = [""]
            while "runtime started" not in said[-1]:
                said.append(process.stdout.readline())
                assert said[-1], f"no head: {''.join(said)}"
            yield Head(f"http://127.0.0.1:{dashboard.partition('=')[2]}", folder)
        finally:
            stop(process)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "records"


def test_a_run_and_beside_it_a_file_with_a_mistake(head, output):
    wrong = head.submit(f"raysync run wrong.yaml --set output={output}")
    short = head.submit(f"raysync run short.yaml --set output={output}")
    told = head.log(short)
    assert head.client.get_job_status(short) == JobStatus.SUCCEEDED, told
    [folder] = (output / "short").iterdir()
    assert load(folder).summary["status"] == "finished"
    lines = [line for line in told.splitlines() if line.startswith("ssp(staleness=2) ")]
    assert 2 <= sum("samples/s" in line for line in lines) <= 12
    assert "\x1b[2K" not in told, "no live display in a log"

    log = head.log(wrong)
    info = head.client.get_job_info(wrong)
    assert (info.status, info.driver_exit_code) == (JobStatus.FAILED, 2)
    assert tells(log, "raysync: wrong.yaml: modl: 'modl' 'model'")
    assert "Traceback" not in log


def test_a_run_that_is_stopped(head, output):
    job = head.submit(f"raysync run long.yaml --set output={output}")
    head.log(job, until="%")
    assert head.has_actors(5), "server, controller, evaluator, two workers"
    assert head.client.stop_job(job)
    log = head.log(job)
    assert head.client.get_job_status(job) == JobStatus.STOPPED
    [folder] = (output / "long").iterdir()
    assert f"The record up to now: {folder}" in log
    record = load(folder)
    assert record.complete
    assert record.summary["status"] == "stopped"
    assert 0 < record.summary["pushes"] == len(record.pushes)
    assert head.has_actors(0)
