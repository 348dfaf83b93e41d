"""The loss of what a run cannot do without: it goes on from its checkpoints, on real processes.
Under BSP it comes to the model of a run without losses, bit by bit.
"""

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from raysync.core.journal import Checkpointed, Remark, Resumed
from raysync.errors import RunFailed
from raysync.record.reader import load
from raysync.running.resuming import prepare_to_resume
from raysync.running.run import run_in
from tests.builders.cluster import LONGER, kill_one, left, lines_of, replayed, same_model

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SETTINGS = LONGER | {
    "paradigm": "bsp",
    "workload": {"samples": 3200},
    "checkpoint": {"every_progress": 0.05},
}


class Failing:
    """A callback that ends the run when half of it is done."""

    def on_progress(self, measures):
        if measures.progress > 0.5:
            raise ValueError("enough")


LOCAL = {
    "local": {"steps": 4, "optimizer": "adamw", "lr": 0.01},
    "update": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
}
"""The worker's moments are in the checkpoint, too."""


@pytest.mark.parametrize(
    ("cluster", "local"),
    [
        ({"transport": "shared-memory"}, {}),
        ({"transport": "object-ref", "server_shards": 2}, LOCAL),
    ],
)
def test_a_run_under_bsp_comes_to_the_same_model_whatever_is_lost(
    ray_cluster, session, run, cluster, local
):
    """A server, which comes back; a controller, inside one command; then the whole command."""
    settings = SETTINGS | local | {"cluster": cluster}
    undisturbed, said = run(**SETTINGS | local), []

    def kill_server(actor_group):
        kill_one("server")

    def kill_controller(actor_group):
        ray_cluster.kill(actor_group.controller)

    record = run(**settings, notify=said.append, strikes={0.25: kill_server, 0.55: kill_controller})
    assert record.summary["status"] == "finished"
    assert record.summary["resumptions"] == 1
    [remark] = lines_of(record, Remark)
    assert " and recovered after " in remark.text
    assert replayed(record)
    assert same_model(record, undisturbed)
    assert sum("recovers from checkpoint" in text for text in said) == 1
    numbers = [line.number for line in lines_of(record, Checkpointed)]
    assert numbers == sorted(set(numbers))

    with pytest.raises(RunFailed, match="enough"):
        run(**settings, name="again", callbacks=[Failing()])
    [path] = record.path.parent.parent.glob("again/*")
    failed = load(path, trust=True)
    assert failed.summary["status"] == "failed"
    training, resume_from = prepare_to_resume(failed, failed.config, said.append)
    resumed = run_in(session, training, failed.config.paradigm, resume_from=resume_from)
    assert resumed.path == path
    assert resumed.summary["status"] == "finished"
    assert [line.exact for line in lines_of(resumed, Resumed)] == [False]
    assert replayed(resumed)
    assert same_model(resumed, undisturbed)
    assert resumed.summary["samples"] == undisturbed.summary["samples"]


def users_of_shared_memory():
    """The processes of this machine that map a segment, or hold one open."""
    users = set()
    for process in psutil.process_iter():
        with suppress(OSError):
            folder = Path("/proc", str(process.pid))
            is_mapped = "memfd:raysync" in (folder / "maps").read_text()
            if is_mapped or any(is_segment(file) for file in (folder / "fd").iterdir()):
                users.add(process)
    return users


def is_segment(file):
    try:
        return "memfd:raysync" in str(file.readlink())
    except OSError:
        return False


def test_killed_processes_leave_no_shared_memory(ray_cluster, session, run):
    """A worker and the server, which come back; the controller is killed when the session ends."""
    before, during = users_of_shared_memory(), []

    def kill(target):
        def strike(actor_group):
            during.append(users_of_shared_memory() - before)
            kill_one(target)

        return strike

    record = run(
        **LONGER | {"workload": {"samples": 4800}},
        paradigm="asp",
        cluster={"transport": "shared-memory", "restarts": {"backoff_s": 0.1}},
        strikes={0.1: kill("worker"), 0.4: kill("server")},
    )
    assert record.summary["status"] == "finished"
    assert replayed(record)
    assert left(record)
    assert any(" and recovered after " in line.text for line in lines_of(record, Remark))
    assert all(len(users) >= 5 for users in during), "controller, server and three workers"
    session.close()
    psutil.wait_procs(users_of_shared_memory() - before, timeout=20)  # Ray does not wait for them
    assert not users_of_shared_memory() - before
