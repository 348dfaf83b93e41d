"""A session whose actors die before the run has begun: they are restarted, or not."""

from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from raysync import config
from raysync.cluster import session as module
from raysync.cluster.session import Session
from raysync.errors import ConfigError, RunFailed
from raysync.record.metrics_registry import RunLabels
from raysync.running.engines import engine_for
from raysync.training.preparation import prepare
from tests.builders.messages import naming, tells

KILLED = ActorDiedError()
BROKEN = ActorDiedError(RayTaskError("__init__", "", ValueError("mine"), "", 1, "", "", "0a"))


@pytest.fixture
def begin(monkeypatch):
    """Begins a run whose actors end so, one start after the other; what was told, and waited."""
    told, waited = [], []
    monkeypatch.setattr(module, "sleep_s", waited.append)

    def begin_run(*errors, attempts=6):
        subject, coming = Session(told.append), list(errors)
        restarts = {"attempts": attempts, "backoff_s": 0.5}
        experiment = config.validate({"cluster": {"restarts": restarts}})

        def start(*_):
            if coming:
                raise coming.pop(0)
            return "a plan"

        monkeypatch.setattr(subject, "_actor_group_for", lambda *_: object())
        monkeypatch.setattr(subject, "_begin", start)
        return subject._begin_with_restarts(None, SimpleNamespace(experiment=experiment), None)[1]

    return begin_run, told, waited


def test_actors_restart_if_one_was_killed_before_the_run_began(begin):
    begin_run, told, waited = begin
    assert begin_run(KILLED, KILLED) == "a plan"
    assert waited == [0.5, 1.0]
    assert tells(told[0], "started 0.5")


@pytest.mark.parametrize(
    ("errors", "attempts"),
    [([KILLED] * 3, 2), ([BROKEN], 6), ([TimeoutError("late")], 6), ([KILLED], 0)],
    ids=["too often", "broken", "late", "without restarts"],
)
def test_what_does_not_start_ends_the_run(begin, errors, attempts):
    begin_run, told, _ = begin
    with pytest.raises(RunFailed, match=naming("actors")):
        begin_run(*errors, attempts=attempts)
    assert len(told) == len(errors) - 1


def test_the_actors_of_a_trial_bear_the_names_of_its_sweep_and_of_itself(monkeypatch):
    names = []

    def named(name, *_):
        names.append(name)
        raise TimeoutError

    monkeypatch.setattr(module, "ActorGroup", named)
    monkeypatch.setattr(module, "feasible_plan", lambda _: None)
    experiment = config.validate({"name": "00003"})
    labels = RunLabels("unequal/00003", "r", "bsp")
    spec = SimpleNamespace(experiment=experiment, is_pipelined=False, slots=["a"], labels=labels)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            Session(placement_group=object())._actor_group_for(spec)
    assert all(name.startswith("raysync:unequal/00003-") for name in names)
    assert len(set(names)) == 2, "another sweep of that name has other actors"


def test_a_private_cluster_has_room_for_the_largest_run_of_its_session(monkeypatch):
    """`raysync calibrate` runs single workers before it runs all of them."""
    opened = []

    def open_(self, cluster, cpus):
        opened.append(cpus)
        raise ConfigError("enough")

    monkeypatch.setattr(module.Connection, "open", open_)
    alone = {"workers": [{"count": 1}], "model": "mlp"}
    training = prepare(config.validate(alone))
    for workers, cpus in ((1, 3), (7, 9)):  # the server and the evaluator beside them
        largest = config.validate(alone | {"workers": [{"count": workers}]})
        with engine_for(largest) as engine, pytest.raises(ConfigError, match="enough"):
            list(engine.run(training, training.make(training.experiment.paradigm)))
        assert opened.pop() == cpus
