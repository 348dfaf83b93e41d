"""Decoupled runs on real Ray: the same numbers as in virtual time, and a run that loses a stage,
the server of another, and its command. Losses at random moments: tests/virtual/test_lost_stages.py.
"""

from collections import Counter

import psutil
import pytest

from raysync import config
from raysync.cluster.session import Session
from raysync.core.events import Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry, Resumed
from raysync.errors import RunFailed
from raysync.record.reader import load
from raysync.running.resuming import prepare_to_resume
from raysync.running.run import run_in
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine
from tests.builders.cluster import pid_of, replayed
from tests.builders.models import breaks_at_a_gradient, last_measured, measured

pytestmark = pytest.mark.ray

DEEP = {"name": "mlp", "hidden": [16, 16]}
TINY = {
    "model": DEEP,
    "workers": [{"name": "gpu", "count": 4, "step_s": 0.02}],
    "batch_size": 8,
    "workload": {"samples": 8 * 2 * 12},
    "evaluation": {"marks": 2},
    "update": {"lr": 0.1, "momentum": 0.5},
}


@pytest.fixture(scope="module")
def session(ray_cluster):
    """Stages are other actors than workers."""
    with Session() as session:
        yield session


def losses(lines):
    """(worker, clock) -> loss of the last module."""
    return {
        (line.event.worker, line.event.clock): line.report.loss
        for line in lines
        if isinstance(line, Entry) and line.report.loss is not None
    }


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({}, "bf16"),
        ({"mix": "weight", "mix_every": 2, "weights": "latest", "shrink": 0.5}, "float32"),
    ],
)
def test_ray_learns_what_virtual_time_learns(session, tmp_path, settings, precision):
    choice = config.ParadigmChoice(name="decoupled", modules=2, groups=2, **settings)
    workers = [TINY["workers"][0] | {"precision": precision}]
    changed = {"output": str(tmp_path), "paradigm": choice.model_dump(), "workers": workers}
    training = prepare(config.validate(TINY | changed))
    record = run_in(session, training, choice)
    expected = losses(
        line for lines in VirtualEngine().run(training, choice.make()) for line in lines
    )
    got = losses(record.journal())
    assert got.keys() == expected.keys()
    assert [got[push] for push in expected] == pytest.approx(list(expected.values()), abs=1e-5)
    assert replayed(record)
    pushes = record.pushes
    assert (
        pushes.delay_ticks == [2 * (2 - WorkerId(worker).stage) for worker in pushes.worker]
    ).all()
    assert record.summary["status"] == "finished"
    assert record.summary["samples"] == 8 * 2 * 12
    assert record.evaluations.mark.tolist() == [0, 0.5, 1]
    assert record.evaluations["at"].is_monotonic_increasing
    assert (pushes.busy_s > 0).all()
    assert measured(record.model(), record) == pytest.approx(last_measured(record), rel=1e-6)


def test_stages_are_kept_for_the_next_run_and_one_that_breaks_ends_it_with_its_reason(
    session, tmp_path
):
    choice = config.ParadigmChoice(name="decoupled", modules=2, groups=2)
    experiment = config.validate(TINY | {"output": str(tmp_path), "paradigm": choice.model_dump()})
    run_in(session, prepare(experiment), choice)
    actor_group = session._actor_group
    assert actor_group.is_reusable
    with pytest.raises(RunFailed, match=r"worker m2/gpu-[13]#1: ValueError: this layer breaks"):
        run_in(session, prepare(experiment, breaks_at_a_gradient), choice)
    assert session._actor_group is actor_group
    assert not actor_group.is_reusable, "the next run gets others"


def pushes_by_stage(lines):
    events = [line.event for line in lines if hasattr(line, "event")]
    pushes = [event for event in events if isinstance(event, Pushed)]
    return Counter(WorkerId(push.worker).stage for push in pushes)


class Failing:
    """A callback that ends the run when most of it is done."""

    def on_progress(self, measures):
        if measures.progress > 0.8:
            raise ValueError("enough")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_in_stages_survives_stages_a_server_the_controller_and_its_command(
    ray_cluster, session, tmp_path
):
    choice = config.ParadigmChoice(name="decoupled", modules=2, groups=2)
    experiment = config.validate(
        TINY
        | {
            "output": str(tmp_path),
            "paradigm": choice.model_dump(),
            "workload": {"samples": 8 * 2 * 120},
            "checkpoint": {"every_progress": 0.05},
            "cluster": {"step_deadline_s": 6.0, "restarts": {"backoff_s": 0.1}},
        }
    )

    def process(actor):
        return psutil.Process(pid_of(ray_cluster, actor))

    strikes = {
        0.2: lambda actor_group: process(actor_group.workers[1]).kill(),
        0.35: lambda actor_group: process(actor_group.workers[2]).suspend(),
        0.5: lambda actor_group: process(actor_group.servers[0]).kill(),
        0.65: lambda actor_group: ray_cluster.kill(actor_group.controller),
    }

    def watch(measures):
        for progress in [each for each in strikes if each <= measures.progress]:
            strikes.pop(progress)(session._actor_group)

    with pytest.raises(RunFailed, match="enough"):
        run_in(session, prepare(experiment), choice, watch=watch, callbacks=[Failing()])
    [path] = tmp_path.glob("*/*")
    record = load(path, trust=True)
    training, resume_from = prepare_to_resume(record, record.config, lambda text: None)
    record = run_in(session, training, choice, resume_from=resume_from)
    assert not strikes
    assert record.summary["status"] == "finished"
    assert replayed(record)
    lines = list(record.journal())
    assert sum(isinstance(line, Resumed) for line in lines) == 5
    assert pushes_by_stage(lines) == {1: 240, 2: 240}
