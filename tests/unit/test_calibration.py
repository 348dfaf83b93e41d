"""What `raysync calibrate` measures is what the virtual engine means by it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from raysync import config
from raysync.calibration import (
    Links,
    Measured,
    MeasuredGroup,
    Sharing,
    StepTimes,
    UpdateTimes,
    calibrate,
    links,
    profile,
    rounds,
    sharing,
    step_times,
    updates,
)
from raysync.cluster.actors.actor_spec import Place
from raysync.errors import ConfigError, RunFailed
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine
from tests.builders.messages import naming, tells

pytestmark = pytest.mark.usefixtures("one_thread")

LATENCY_S, BANDWIDTH, START_S, PUSH_S = 0.02, 5e7, 3.5, 0.012
FIXED_S, PER_SAMPLE_S = 0.04, 0.002


class Known:
    """An engine whose devices and links are known, and how long a process takes to start."""

    models, resumes_exactly, rosters = (), False, {}

    def __init__(self, devices=("cpu",), holds=10**9, server=None, sigma=0.0, push_s=0.0, **slow):
        self.devices, self.holds, self.slow = devices, holds, slow
        self.server, self.sigma, self.push_s = server, sigma, push_s
        self.places = {}

    def run(self, training, paradigm, *_):
        assert training.experiment.cluster.server_shards == 1, "none is to be counted first"
        network = config.Network(
            link=config.Link(latency_s=LATENCY_S, bandwidth_bytes_per_s=BANDWIDTH),
            server_bandwidth_bytes_per_s=self.server,
            share_sigma=self.sigma,
            push_s=self.push_s,
        )
        times = {"start_s": START_S, "per_sample_s": PER_SAMPLE_S, "fixed_s": FIXED_S}
        groups = {
            group.name: group.model_copy(
                update=({} if group.step_s else times)
                | {"link": config.Link(latency_s=self.slow.get(group.name, 0.0))}
            )
            for group in training.experiment.workers
        }
        experiment = training.experiment.model_copy(
            update={"network": network, "workers": tuple(groups.values())}
        )
        groups = {slot: groups[group.name] for slot, group in training.groups.items()}
        nodes = {slot: f"node of {group.name}" for slot, group in groups.items()}
        self.places = {
            name: Place("0a", node, "10.0.0.1", (), tuple(self.devices))
            for name, node in ({"server-0": "node of the server"} | nodes).items()
        }
        if experiment.model.name == "mlp" and experiment.batch_size > self.holds:
            raise RunFailed("worker w-0#1: OutOfMemoryError: CUDA out of memory.")
        return VirtualEngine().run(
            replace(training, experiment=experiment, groups=groups), paradigm
        )


def of_groups(*workers, **settings):
    return prepare(config.validate({"model": "mlp", "workers": list(workers), **settings}))


def test_known_devices_links_and_starts_are_found(monkeypatch):
    for part in (links, rounds):
        monkeypatch.setattr(part, "update_s", lambda *_: 0.0)  # as on the virtual clock here
    monkeypatch.setattr(links, "ITERATIONS", 30)
    said = []
    found = calibrate(
        Known(far=0.05, push_s=PUSH_S),
        of_groups(
            {"name": "near"}, {"name": "far", "batch_size": 16}, {"name": "said", "step_s": 1}
        ),
        said.append,
        lambda node: (1.5 if node == "node of far" else 0.1, 4),
    )
    for name, latency_s, sizes in (
        ("near", LATENCY_S, [8, 16, 32, 64, 128]),
        ("far", LATENCY_S + 0.05, [4, 8, 16, 32, 64]),
    ):
        group = found.groups[name]
        assert list(group.steps.seconds) == sizes
        assert group.steps.fixed_s == pytest.approx(FIXED_S)
        assert group.steps.per_sample_s == pytest.approx(PER_SAMPLE_S)
        assert (group.steps.floor_s, group.steps.max_batch) == (0.0, None)
        assert group.steps.sigma == pytest.approx(0.0, abs=1e-9)
        assert group.links.latency_s == pytest.approx(latency_s)
        assert group.links.bandwidth_bytes_per_s == pytest.approx(BANDWIDTH)
        assert group.start_s == pytest.approx(START_S)
    assert found.groups["said"].steps is None
    assert found.sharing is None
    assert found.push_s == pytest.approx(PUSH_S)
    assert found.updates.bytes_per_s > 0
    [warning] = [text for text in said if "busy" in text]
    assert tells(warning, "1.5 4 cores")


def test_the_latency_of_an_object_is_without_the_time_of_its_bytes(monkeypatch):
    monkeypatch.setattr(links, "ITERATIONS", 30)
    experiment = of_groups({"name": "near"}).experiment
    found = links.links_of(Known(), experiment, experiment.workers[0], 4_000_000)
    assert found.latency_s == pytest.approx(LATENCY_S, rel=0.1)
    assert found.bandwidth_bytes_per_s == pytest.approx(BANDWIDTH, rel=0.1)


def shared(engine, *workers, alone, **settings):
    """What is found of the link that groups share, each of whose links alone is known."""
    experiment = of_groups(*workers, **settings).experiment
    return sharing.sharing_of(engine, experiment, alone, 4_000_000)


@pytest.mark.parametrize(("rate", "sigma"), [(0.5, 0.0), (0.5, 0.4), (1.5, 0.2), (0.8, 1.0)])
def test_a_link_that_workers_share_is_found_and_how_unequally(monkeypatch, rate, sigma):
    monkeypatch.setattr(sharing, "ROUNDS", 60)
    engine = Known(server=rate * BANDWIDTH, sigma=sigma, far=0.02)
    alone = {
        "near": Links(LATENCY_S, BANDWIDTH),
        "far": Links(LATENCY_S + 0.02, BANDWIDTH),
        "slow": Links(LATENCY_S, BANDWIDTH / 2),
    }
    workers = {"name": "near", "count": 3}, {"name": "far"}, {"name": "slow"}
    found = shared(engine, *workers, alone=alone)
    assert found.bytes_per_s == pytest.approx(rate * BANDWIDTH, rel=0.05)
    assert found.sigma == pytest.approx(sigma, rel=0.3, abs=0.01)


@pytest.mark.parametrize("push_s", [0.0, 0.0004, 0.003])
def test_what_each_push_costs_the_coordinator_is_found(monkeypatch, push_s):
    monkeypatch.setattr(rounds, "update_s", lambda *_: 0.0)  # as on the virtual clock here
    monkeypatch.setattr(rounds, "ROUNDS", 14)
    alone = {"near": Links(LATENCY_S, None), "far": Links(0.07, None)}
    engine = Known(push_s=push_s, far=0.05)
    for count, expected in ((4, push_s), (1, 0.0)):
        groups = of_groups({"name": "near", "count": count}, {"name": "far"}).experiment
        assert rounds.push_s_of(engine, groups, alone) == pytest.approx(expected)


def test_a_server_beside_a_worker_shares_the_link_with_the_others():
    alone = {name: Links(LATENCY_S, BANDWIDTH) for name in ("host", "other", "third")}
    workers, cluster = [{"name": name} for name in alone], {"server_placement": "with-workers"}
    found = shared(Known(server=BANDWIDTH / 2), *workers, alone=alone, cluster=cluster)
    assert found.bytes_per_s == pytest.approx(BANDWIDTH / 2, rel=0.05)


@pytest.mark.parametrize("rate", [5 * BANDWIDTH, None])
def test_a_link_with_enough_bandwidth_is_not_taken_for_a_shared_one(rate):
    alone = {"near": Links(LATENCY_S, BANDWIDTH)}
    assert shared(Known(server=rate), {"name": "near", "count": 4}, alone=alone) is None


@given(st.floats(0, 1), st.floats(1e-4, 1), st.integers(0, 2))
def test_a_line_with_a_floor_is_found_again(fixed_s, per_sample_s, flat):
    sizes = [4, 8, 16, 32, 64]
    floor_s = fixed_s + per_sample_s * sizes[flat] if flat else 0.0
    exact = {size: [max(floor_s, fixed_s + per_sample_s * size)] * 3 for size in sizes}
    found = step_times.fitted(exact)
    for size in sizes:
        assert found.at(size) == pytest.approx(exact[size][0], rel=0.1)


def test_the_spread_is_that_of_the_logarithms():
    found = step_times.fitted({1: [0.9, 1.0, 1.1], 2: [1.8, 2.0, 2.2], 4: [3.6, 4.0, 4.4]})
    assert found.sigma == pytest.approx(0.082, abs=1e-3)


def test_the_largest_batch_that_fits_is_found_by_trying():
    engine = Known(devices=("cuda:0 A100",), holds=150)
    training = of_groups({"name": "w", "gpus": 1})
    [group] = training.experiment.workers
    found = step_times.step_times(engine, training, group)
    assert 150 / step_times.CLOSE <= found.max_batch <= 150
    assert list(found.seconds) == [8, 16, 32, 64, 128]
    smaller = step_times.step_times(Known(devices=("cuda:0 A100",), holds=40), training, group)
    assert list(smaller.seconds) == [8, 16, 32]
    assert 40 / step_times.CLOSE <= smaller.max_batch <= 40


@pytest.mark.parametrize(
    ("engine", "says"),
    [(Known(), "gpus: 1 GPU"), (Known(devices=("cuda:0 A100",), holds=1), "8 memory")],
)
def test_a_group_that_cannot_be_measured_is_refused(engine, says):
    training = of_groups({"name": "w", "gpus": 1})
    with pytest.raises(ConfigError, match=naming(says)):
        calibrate(engine, training)


@given(fixed_s=st.floats(0, 1), reading_s=st.floats(1e-6, 1))
def test_an_update_has_a_fixed_time_and_one_for_each_gradient(fixed_s, reading_s):
    def update_s(vector_bytes, gradients, update):
        return fixed_s + gradients * reading_s

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "update_s", update_s)
        found = updates.update_times(400, config.Update())
    assert found.update_s == pytest.approx(fixed_s, abs=1e-9)
    assert found.bytes_per_s == pytest.approx(400 / reading_s, rel=1e-6)


@pytest.mark.parametrize(
    "update", [{"staleness_scaling": "inverse"}, {"delay_compensation": "adaptive"}]
)
def test_updates_that_look_at_old_weights_can_be_timed(monkeypatch, update):
    class Once:
        def __init__(self, statement, globals, num_threads):
            self.work = globals["once"]

        def blocked_autorange(self, min_run_time):
            self.work()
            return SimpleNamespace(median=1.0)

    monkeypatch.setattr(updates, "Timer", Once)
    assert updates.update_s(400, 3, config.Update(**update)) == 1.0


def test_a_profile_holds_the_workers_and_what_was_measured(tmp_path):
    """A group that says itself how long its step lasts keeps that; the others get what was
    measured, and a link of their own where their way is longer.
    """
    workers = [
        {"name": "said", "count": 2, "step_s": 0.1, "speed": 0.5, "jitter": {"sigma": 0.1}},
        {"name": "silent"},
        {"name": "quick", "start_s": 0.5},
    ]
    experiment = config.validate({"workers": workers})
    steps = StepTimes({32: 0.1}, 0.01, 0.00234567, 0.03, 0.0512, 96)
    near, far = Links(0.001, None), Links(0.0042, 1e8)
    measured = Measured(
        {
            "said": MeasuredGroup(None, near, 4.321),
            "silent": MeasuredGroup(steps, far, 4.321),
            "quick": MeasuredGroup(steps, near, 4.321),
        },
        UpdateTimes(1e-4, 2e9),
        Sharing(4.321e8, 0.25),
        push_s=0.00054321,
    )
    path = tmp_path / "here.yaml"
    path.write_text(profile(experiment, measured, "a test"))
    again = config.validate({"profile": str(path), "engine": "virtual"})
    assert again.workers[0] == experiment.workers[0].model_copy(update={"start_s": 4.32})
    assert again.workers[2].start_s == 0.5
    silent = again.workers[1]
    assert (silent.fixed_s, silent.per_sample_s, silent.floor_s) == (0.01, 0.00235, 0.03)
    assert (silent.max_batch, silent.jitter.sigma) == (96, 0.0512)
    assert silent.link == config.Link(latency_s=0.0032, bandwidth_bytes_per_s=1e8)
    assert again.network == config.Network(
        link=config.Link(latency_s=0.001),
        server_bandwidth_bytes_per_s=4.32e8,
        share_sigma=0.25,
        push_s=0.000543,
        update_s=1e-4,
        update_bytes_per_s=2e9,
    )
