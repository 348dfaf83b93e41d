"""Whole runs on real Ray: few, short, and judged by their records."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import raysync
from raysync import config
from raysync.core.journal import Ended, Entry
from tests.builders.cluster import TINY, UNEQUAL, pid_of, replayed
from tests.builders.messages import tells
from tests.builders.models import Large, last_measured, line, measured
from tests.builders.tasks import Chosen, SumUp, Validated

pytestmark = pytest.mark.ray
TOO_FAST = {"lr": 1e20, "groups": [{"match": ["*"], "lr_factor": 1e20}]}
"""A step with which float32 overflows."""


def both(run, task, tmp_path, **settings):
    """The records of a task on Ray and in virtual time, whose losses are the same."""
    fresh = TINY | settings | {"output": str(tmp_path), "engine": "virtual"}
    record, expected = run(given=task, **settings), raysync.run(fresh, task=task)
    got, wanted = (
        each.pushes.sort_values(["clock", "worker"], ignore_index=True)
        for each in (record, expected)
    )
    assert got.worker.equals(wanted.worker)
    assert np.allclose(got.loss, wanted.loss, atol=1e-6)
    assert len(set(got.loss)) > 3
    return record, expected


@pytest.mark.slow
def test_a_users_task_is_read_ahead_by_processes_and_learns_as_in_virtual_time(run, tmp_path):
    """Dicts of padded sequences with noise, in micro-batches; the same losses and metrics."""
    settings = {
        "data": {"loader_workers": 1, "train_samples": 20},
        "batch_size": 5,
        "micro_batch": 3,
        "workload": {"samples": 75},
        "evaluation": {"marks": 2},
        "update": {"lr": 0.02, "no_decay": "norm-and-bias", "weight_decay": 0.1},
    }
    record, expected = both(run, Validated(), tmp_path, **settings)
    assert list(record.evaluations.columns)[4:] == ["mae", "loss", "test_mae", "test_loss"]
    assert np.allclose(record.evaluations.mae, expected.evaluations.mae, atol=1e-6)
    assert record.summary["final_test_mae"] == pytest.approx(expected.summary["final_test_mae"])
    assert record.model(SumUp()).inner.weight.shape == (3, 4)


@pytest.mark.slow
def test_a_sampler_chooses_the_same_on_ray_as_in_virtual_time(run, tmp_path):
    settings = {"batch_size": 3, "workload": {"samples": 36}, "update": {"lr": 0.05}}
    both(run, Chosen(), tmp_path, **settings)


@pytest.mark.slow
def test_shards_devices_and_precision_change_where_it_is_computed_not_what(run, tmp_path):
    """Two clipping server shards, placed with workers of two devices each, make the model that one
    server makes.
    """
    # Nothing, where weights are those that gradients were computed on.
    compensation = {"name": "constant", "strength": 1e6}
    settings = {
        "update": {
            "optimizer": "adamw",
            "lr": 0.01,
            "clip_norm": 0.1,
            "delay_compensation": compensation,
        },
        "paradigm": "bsp",
    }
    whole = run(**settings)
    sharded = {
        "workers": [group | {"devices_per_worker": 2} for group in TINY["workers"]],
        "cluster": {"server_shards": 2, "server_placement": "with-workers"},
        "output": str(tmp_path),
    }
    split = raysync.run(TINY | settings | sharded)
    assert np.allclose(split.evaluations.loss, whole.evaluations.loss, atol=1e-4)
    assert whole.evaluations.loss.iloc[-1] < whole.evaluations.loss.iloc[0] - 0.1
    assert measured(split.model(), split) == pytest.approx(last_measured(split), rel=1e-6)
    places = json.loads((split.path / "environment.json").read_text())["places"]
    assert list(places) == ["server-0", "server-1", "evaluator", "fast-0", "fast-1", "slow-0"]
    assert places["slow-0"]["devices"] == ["cpu", "cpu"]


def test_a_run_replays_identically_and_adds_up(run):
    settings = {
        "paradigm": {"name": "lagtuner", "s_lower": 1, "s_upper": 4},
        "workers": UNEQUAL,
        "evaluation": {"marks": 8},
        "seed": 5,
    }
    record = run(**settings)
    roster = replayed(record).machine.roster
    summary, pushes = record.summary, record.pushes
    applied = pushes[pushes.outcome == "applied"]
    assert summary["status"] == "finished"
    assert summary["samples"] == applied.samples.sum() >= 480 > summary["samples"] - 3 * 8
    assert roster.samples_applied == summary["samples"]
    assert summary["updates"] == applied.version.nunique() == roster.version
    assert summary["lead_max"] <= 4
    assert (applied.staleness >= 0).all()
    assert pushes.loss.iloc[-20:].mean() < pushes.loss.iloc[:20].mean()
    assert (pushes.busy_s >= 0.01).all(), "an emulated step takes its time"
    assert sum(one["pushes"] for one in summary["per_worker"]) == summary["pushes"] == len(pushes)
    assert {one["group"] for one in summary["per_worker"]} == {"fast", "slow"}
    last = list(record.journal())[-1]
    assert isinstance(last, Ended)
    assert record.evaluations.mark.tolist() == [mark / 8 for mark in range(9)]
    assert record.evaluations["at"].is_monotonic_increasing
    assert record.evaluations.version.iloc[-1] == summary["updates"]
    assert summary["final_accuracy"] == record.evaluations.accuracy.iloc[-1] > 0.5
    assert summary["seconds"] <= summary["wall_seconds"]
    assert (summary["engine"], summary["seed"]) == ("ray", 5)
    assert record.config == config.validate(TINY | settings), "without the folder of its records"


def test_actors_say_who_they_are_and_the_controller_logs_what_matters(ray_cluster, session, run):
    """Names for `ray.get_actor` and the dashboard, reprs for logs; a line where a run begins and
    ends, none for a push.
    """
    record = run(paradigm="bsp", workers=UNEQUAL)
    actor_group = session._actor_group.name
    reprs = {
        f"{actor_group}:controller": "controller",
        f"{actor_group}:server-0": "server-0",
        f"{actor_group}:evaluator": "evaluator",
        f"{actor_group}:worker-0 (fast-0)": "worker-0 fast-0",
        f"{actor_group}:worker-1 (fast-1)": "worker-1 fast-1",
        f"{actor_group}:worker-2 (slow-0)": "worker-2 slow-0",
    }
    assert actor_group.startswith("raysync:test-")
    assert set(reprs) == {
        name for name in ray_cluster.util.list_named_actors() if name.startswith(actor_group)
    }
    actors = {name: ray_cluster.get_actor(name) for name in reprs}
    assert {
        name: ray_cluster.get(actor.__ray_call__.remote(repr)) for name, actor in actors.items()
    } == reprs
    log = logged(ray_cluster, actors[f"{actor_group}:controller"])
    assert tells(
        log[-2], f"INFO controller at_s=0.0 kind=begin test/{record.path.name} 3 480 0 bsp"
    )
    assert ray_cluster.util.get_placement_group(actor_group) == session._actor_group.group
    assert tells(log[-1], "kind=ended finished")
    assert len(log) % 2 == 0, "each run has two lines"
    ready = logged(ray_cluster, actors[f"{actor_group}:worker-0 (fast-0)"])
    assert tells(ready[-1], "kind=ready mlp cpu")
    for actor, name, value in (
        ("server-0", "OMP_WAIT_POLICY", "passive"),  # spinning would take the cores of workers
        ("controller", "MALLOC_ARENA_MAX", "1"),  # with more, free memory adds up
    ):
        variables = actors[f"{actor_group}:{actor}"].__ray_call__.remote(lambda _: dict(os.environ))
        assert ray_cluster.get(variables)[name] == value


def logged(ray, actor):
    """The lines that an actor has logged."""
    pid = pid_of(ray, actor)
    folder = Path(ray._private.worker._global_node.get_logs_dir_path())
    [path] = folder.glob(f"worker-*-{pid}.err")
    return [line for line in path.read_text().splitlines() if not line.startswith(":")]


def test_a_model_and_a_data_set_as_python_objects(run):
    """A linear model on a problem it can solve, given as an nn.Module and as arrays."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = x[:, :3].argmax(axis=1)
    mine = raysync.data_set("argmax", (x, y), (x[:100], y[:100]))
    adam = {"optimizer": "adam", "lr": 0.05}
    record = run(model=nn.Linear(6, 3), data=mine, update=adam)
    assert record.summary["final_accuracy"] > 0.9
    assert (record.summary["model"], record.summary["dataset"]) == ("Linear", "argmax")
    assert run(model=line).summary["model"] == "line", "a function, which gets the classes"


@pytest.mark.slow
def test_weights_that_an_update_has_made_not_finite_are_told_by_the_shard_that_has_them(run):
    record = run(update=TOO_FAST, paradigm="asp", cluster={"server_shards": 2})
    assert record.summary["status"] == "diverged"
    [found] = [
        line.report.not_finite
        for line in record.journal()
        if isinstance(line, Entry) and line.report.not_finite is not None
    ]
    assert found.first == "weights"
    assert found.parameter in record.summary["error"]


def test_runs_that_follow_one_another_keep_the_actors_and_start_afresh(session, run):
    first, actor_group = run(paradigm="sync-switch"), session._actor_group
    assert first.summary["switches"]
    assert replayed(first)
    second, third = run(seed=1), run()
    assert session._actor_group is actor_group
    assert second.summary["seed"] == 1
    first_scores = [one.evaluations.loss.iloc[0] for one in (first, second, third)]
    assert first_scores[0] == first_scores[2] != first_scores[1], (
        "reset to the initial weights of the seed"
    )


@pytest.mark.parametrize(
    ("paradigm", "model"),
    [
        pytest.param(
            {"name": "hybrid", "k": 3, "pull_interval": 2}, "fashion-cnn", marks=pytest.mark.slow
        ),
        ("bsp", Large()),
    ],
    ids=["buffers", "large"],
)
def test_runs_over_both_transports_agree_and_say_which_it_was(run, paradigm, model):
    """With batch norm's buffers, which travel behind the gradient; and with a model so large that
    its weights are used in place. Sums depend on their order. The third run
    has the memory of the second.
    """
    transports = ("object-ref", "shared-memory", "shared-memory")
    settings = {"paradigm": paradigm, "workers": UNEQUAL, "model": model, "update": {"lr": 0.02}}
    records = [run(**settings, cluster={"transport": transport}) for transport in transports]
    first, *others = [record.evaluations.loss.to_numpy() for record in records]
    for losses in others:
        np.testing.assert_allclose(losses, first, rtol=1e-4)
    assert first[-1] < first[0]
    for record, transport in zip(records, transports, strict=True):
        places = json.loads((record.path / "environment.json").read_text())["places"]
        assert {place["transport"] for place in places.values()} == {transport}
        assert replayed(record)
