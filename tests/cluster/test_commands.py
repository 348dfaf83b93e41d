"""The command line from outside: whole processes, on private clusters of their own."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from ipaddress import ip_address
from threading import Event
from uuid import uuid4

import psutil
import pytest

from raysync.record.reader import load
from tests.builders.cluster import replayed
from tests.builders.messages import tells
from tests.builders.processes import started

pytestmark = pytest.mark.ray

LONG = """
import sys, raysync
raysync.run({"output": sys.argv[1], "workload": {"epochs": 1000},
    "workers": [{"count": 2, "step_s": 0.01}],
             "data": {"name": "digits"}, "paradigm": "asp"},
            watch=lambda measures: print(measures.updates, flush=True))
"""

FILE = """
name: tiny
data: {name: digits, train_samples: 320, test_samples: 50}
workload: {samples: 320}
batch_size: 8
workers: [{name: fast, step_s: 0.005}, {name: slow, step_s: 0.02}]
paradigms: [bsp, {name: ssp, staleness: 2}]
target: {metric: accuracy, at_least: 0.3}
"""


def ray_processes(mark):
    """Ray's own processes and workers that were started with this mark in their environment, in
    whatever way.
    """
    found = set()
    for process in psutil.process_iter(["name", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [process.info["name"] or ""])
        with suppress(psutil.Error):
            if (
                "ray::" in line or "raylet" in line or "gcs_server" in line
            ) and mark in process.environ().values():
                found.add(process)
    return found


@pytest.fixture
def mark(monkeypatch):
    """A word in the environment of what this test starts: others may run Ray beside it."""
    word = uuid4().hex
    monkeypatch.setenv("STARTED_BY_TEST", word)
    return word


def killed_rest(mark, wait_s=30):
    """The processes that do not end by themselves, which are killed."""
    _, alive = psutil.wait_procs(ray_processes(mark), timeout=wait_s)
    for process in alive:
        process.kill()
    return alive


@pytest.fixture
def nothing_left_behind(mark):
    yield
    assert not killed_rest(mark)


def test_compare_prints_a_table_and_its_records_replay(tmp_path, nothing_left_behind):
    # pytest-xdist, or readline beneath Python, sets COLUMNS; a log is as wide as its lines
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    (tmp_path / "file.yaml").write_text(FILE)
    command = [sys.executable, "-m", "raysync", "compare", "file.yaml", "--set", "output=here"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    rows = {row[0]: row for row in table if row and row[0] in ("bsp", "ssp(staleness=2)")}
    assert set(rows) == {"bsp", "ssp(staleness=2)"}, done.stdout
    records = [load(path) for path in (tmp_path / "here" / "tiny").iterdir()]
    assert sorted(record.summary["paradigm"] for record in records) == ["bsp", "ssp"]
    assert all(map(replayed, records))


STUCK = """
import sys
from raysync.cli import main
from raysync.cluster import connection, session

session.TEARDOWN_S, connection.SHUTDOWN_S = 1.0, 3.0
sys.argv = ["raysync", "run", "long.yaml"]
main()
"""


@pytest.mark.slow
def test_a_command_whose_ray_is_frozen_is_stopped_all_the_same(tmp_path, mark, nothing_left_behind):
    """By SIGTERM, which Ray would answer with a stack trace; and no socket of Ray can be reached
    from another machine.
    """
    long = FILE.replace("{samples: 320}", "{epochs: 999}") + "paradigm: asp\noutput: here\n"
    (tmp_path / "long.yaml").write_text(long)
    process = started([sys.executable, "-c", STUCK], cwd=tmp_path, stderr=subprocess.PIPE)
    while not [
        path for path in tmp_path.glob("here/*/*/journal.jsonl") if path.stat().st_size > 5000
    ]:
        assert process.poll() is None, process.communicate()
        Event().wait(0.05)
    family = [psutil.Process(process.pid), *ray_processes(mark)]
    hosts = [
        each.laddr.ip
        for one in family
        for each in one.net_connections("inet")
        if each.status == "LISTEN"
    ]
    assert len(hosts) > 8, "GCS, raylet, agents, workers, driver"
    assert all(ip_address(host.removeprefix("::ffff:")).is_loopback for host in hosts)
    for one in family:
        if one.name() == "gcs_server":
            one.suspend()
    process.terminate()
    _, err = process.communicate(timeout=60)
    [folder] = (tmp_path / "here" / "tiny").iterdir()
    assert process.returncode == 128 + signal.SIGTERM, err
    first, *_, stopped, _, actors, cluster = err.splitlines()
    assert tells(first, "Starting 2")
    assert stopped.endswith(str(folder.relative_to(tmp_path)))
    assert tells(actors, "1 s")
    assert tells(cluster, "3 s")
    assert load(folder).summary["status"] == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "cleans"),
    [(signal.SIGINT, "stopped", True), (signal.SIGKILL, "unfinished", False)],
    ids=["Ctrl-C", "killed"],
)
def test_a_run_that_gets_a_signal_keeps_its_record(tmp_path, mark, number, status, cleans):
    """SIGTERM, as `ray job stop` sends it, comes to the frozen one above."""
    process = started(
        [sys.executable, "-c", LONG, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    for line in process.stdout:
        if int(line) >= 20:
            break
    process.send_signal(number)
    process.communicate(timeout=60)
    [folder] = (tmp_path / "experiment").iterdir()
    record = load(folder)
    assert process.returncode == -number, "what Python does"
    assert record.complete == cleans
    assert record.summary["status"] == status
    assert record.summary["updates"] >= 20
    assert len(record.pushes) == record.summary["pushes"]
    assert json.loads((record.path / "environment.json").read_text())["packages"]["ray"]
    if cleans:
        assert not killed_rest(mark)
    else:
        assert killed_rest(mark, wait_s=0), "two agents of Ray outlive a driver that is killed"
