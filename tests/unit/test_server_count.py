"""How many servers share a model where that is left open: by what was measured, and by what cannot
be."""

from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st
from ray.exceptions import ActorDiedError

from raysync import config
from raysync.cluster import auto_servers, paces
from raysync.cluster.placement import plan
from raysync.cluster.server_count import (
    BUSY,
    LEAST_BYTES,
    Pace,
    UpdatePace,
    choose,
    most_servers,
    pushes_per_s,
    reason_for_one,
    room_for,
    settled,
)
from raysync.cluster.session import Session
from raysync.core.checkpoint import Checkpoint
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.training.preparation import prepare

LARGE = 100 * LEAST_BYTES
CORES = {"near": 64, "far": 32}


def on_gpus(count, cycle_s=0.1, node="near"):
    return [Pace(node, cycle_s, 0.0)] * count


def test_the_servers_for_eight_gpus_by_a_pencil():
    """80 pushes a second of 20 ms each are 160 %: four servers are busy 40 %, three 53 %."""
    count = choose(UpdatePace(0.02, 4), on_gpus(8), LARGE, CORES)
    assert (count.servers, count.update_s, count.pushes_per_s, count.busy) == (4, 0.02, 80, 1.6)
    assert count.sentence == (
        "4 servers share the model: one alone would be busy 160 % of the time, as an update takes"
        " 20 ms and 8 workers push at most 80 times a second."
    )


@pytest.mark.parametrize(
    ("update", "vector_bytes", "servers", "why"),
    [
        (UpdatePace(0.005, 4), LARGE, 1, "would be busy 40 % of the time"),
        (UpdatePace(0.02, 30), LARGE, 2, "4 would be needed for 50 %, but the cores of the work"),
        (UpdatePace(0.02, 64), LARGE, 1, "but the cores of the workers' nodes are enough for 1"),
        (UpdatePace(0.02, 4), 3 * LEAST_BYTES, 3, "a part below 4 MiB is not worth a server"),
    ],
)
def test_no_more_than_there_are_cores_for_and_than_the_model_is_large_enough_for(
    update, vector_bytes, servers, why
):
    count = choose(update, on_gpus(8), vector_bytes, CORES)
    assert count.servers == servers
    assert why in count.sentence


def test_workers_that_compute_on_more_cores_than_there_are_push_less_often():
    """Eight that take a core for 0.1 s each, on four cores, push 40 times a second; those that
    sleep in between push as often as they would alone.
    """
    busy = [Pace("here", 0.1, 0.1)] * 8
    assert pushes_per_s(busy, {"here": 4}) == pytest.approx(40)
    assert pushes_per_s(busy, {"here": 8}) == pytest.approx(80)
    assert pushes_per_s([Pace("here", 0.1, 0.04)] * 8, {"here": 4}) == pytest.approx(80)
    apart = [Pace("here", 0.1, 0.1)] * 4 + [Pace("there", 0.1, 0.1)] * 4
    assert pushes_per_s(apart, {"here": 2, "there": 4}) == pytest.approx(60)
    assert pushes_per_s(busy, {"here": 4}, update_core_s=0.1) == pytest.approx(20), "and updates"


paces_of_workers = st.lists(
    st.builds(
        Pace, st.sampled_from(sorted(CORES)), st.floats(1e-3, 10), st.just(0.0) | st.floats(0, 10)
    ),
    min_size=1,
    max_size=20,
)
updates = st.builds(UpdatePace, st.floats(1e-5, 5), st.integers(1, 80))
sizes = st.integers(1, 2**32)


@given(updates, paces_of_workers, sizes)
def test_the_fewest_that_are_not_too_busy_as_far_as_there_can_be_so_many(
    update, workers, vector_bytes
):
    count = choose(update, workers, vector_bytes, CORES)
    room = room_for(update.threads, [each.node for each in workers], CORES)
    assert 1 <= count.servers <= min(room, most_servers(vector_bytes))
    if count.servers > 1:
        assert count.busy > BUSY * (count.servers - 1), "fewer would do"
    is_short = count.busy > BUSY * count.servers
    if is_short:
        assert count.servers == min(room, most_servers(vector_bytes)), "more would help"
    assert is_short == ("would be needed" in count.why)


@given(updates, paces_of_workers, sizes, st.floats(1, 50), st.data())
def test_more_to_do_never_means_fewer_servers(update, workers, vector_bytes, factor, data):
    count = choose(update, workers, vector_bytes, CORES)
    longer = UpdatePace(update.update_s * factor, update.threads)
    assert choose(longer, workers, vector_bytes, CORES).servers >= count.servers
    idle = Pace(data.draw(st.sampled_from([each.node for each in workers])), 0.5, 0.0)
    assert choose(update, [*workers, idle], vector_bytes, CORES).servers >= count.servers
    quicker = [Pace(each.node, each.cycle_s / factor, each.core_s / factor) for each in workers]
    assert choose(update, quicker, vector_bytes, CORES).servers >= count.servers
    assert choose(update, workers, 2 * vector_bytes, CORES).servers >= count.servers


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, ""),
        ({"update": {"project_radius": 3.0}}, "update.project_radius needs the norm of the whole"),
        ({"update": {"clip_norm": 1.0}}, "with update.clip_norm servers would have to tell"),
        (
            {"paradigm": "sync-switch", "update": {"phases": {"asp": {"clip_norm": 1.0}}}},
            "with update.clip_norm",
        ),
        ({"cluster": {"transport": "auto"}}, "with cluster.transport: auto steps and updates go"),
        ({"cluster": {"transport": "shared-memory"}}, "with cluster.transport: shared-memory"),
        ({"update": {"delay_compensation": "adaptive", "optimizer": "sgd"}}, ""),
    ],
)
def test_what_keeps_one_server_is_named(settings, why):
    found = reason_for_one(config.validate(settings))
    assert found.startswith(why) if why else found == ""


@pytest.mark.parametrize(
    ("cluster", "servers", "placement"),
    [
        ({}, 3, "spread"),
        ({}, 1, "apart"),
        ({"server_placement": "with-workers"}, 3, "with-workers"),
        ({"server_label_selector": {"disk": "fast"}}, 3, "apart"),
    ],
)
def test_several_are_beside_workers_unless_labels_say_where(cluster, servers, placement):
    experiment = settled(config.validate({"cluster": {"server_shards": "auto"} | cluster}), servers)
    assert experiment.cluster.server_shards == experiment.cluster.servers == servers
    assert experiment.cluster.server_placement == placement


def test_spread_servers_lie_evenly_among_the_workers():
    def hosts(servers, workers, placement="spread"):
        groups = [{"name": "w", "count": workers, "cpus": 3}]
        cluster = {"server_shards": servers, "server_placement": placement, "server_cpus": 2}
        experiment = config.validate({"workers": groups, "cluster": cluster})
        made = plan(experiment)
        beside = [made.workers.index(index) for index in made.servers]
        cpus = [made.bundles[index].resources["CPU"] for index in made.workers]
        assert cpus == [3 + 2 * beside.count(worker) for worker in range(workers)]
        return beside

    assert hosts(4, 8) == [0, 2, 4, 6]
    assert hosts(3, 8) == [0, 2, 5]
    assert hosts(2, 2) == [0, 1]
    assert hosts(3, 2) == [0, 1, 0]
    assert hosts(3, 8, "with-workers") == [0, 1, 2]


# ---- a session whose actors are not there ----


class Ready:
    """What an actor returns, without Ray."""

    def __init__(self, answer):
        self._answer = answer

    def remote(self, *_):
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


WIDE = {"name": "mlp", "hidden": [1500, 1500]}
"""10 MB: the parts of two servers are large enough."""


@pytest.fixture
def session(monkeypatch):
    """Starts runs; `started` are their numbers of servers and placements, `told` what is said."""
    monkeypatch.setattr(auto_servers.ray, "get", lambda value: value)
    monkeypatch.setattr(auto_servers, "placed", lambda experiment: None)

    class Runs:
        update = UpdatePace(0.1, 1)
        paces = [Pace("near", 0.1, 0.0)]
        within = None
        refused = ()

        def __init__(self):
            self.told, self.started = [], []
            self.subject = None

        def run(self, paradigm="asp", checkpoint=None, **settings):
            if self.subject is None:
                self.subject = Session(self.told.append, within=self.within)
            training = prepare(config.validate({"model": WIDE, **settings}))
            slots = training.experiment.slots()
            self.subject.places = {slot: SimpleNamespace(node_id="near") for slot in slots}
            self.subject._cores = lambda: {"near": 8}
            self.subject.shared = lambda model: None
            group = SimpleNamespace(
                servers=[SimpleNamespace(__ray_call__=Ready(self.update))],
                workers=[SimpleNamespace(pace=Ready(self.paces[0])) for _ in slots],
            )

            def start(training, spare_cpus=0.0):
                cluster = training.experiment.cluster
                self.started.append((cluster.servers, cluster.server_placement, spare_cpus))
                if cluster.servers in self.refused:
                    raise ConfigError("others use them")
                return None, group, None

            self.subject._started(training, make(paradigm), checkpoint, start)
            return self.subject.server_count

    return Runs()


AUTO = {"cluster": {"server_shards": "auto"}}


def test_a_run_begins_with_one_server_and_goes_on_with_as_many_as_it_needs(session, monkeypatch):
    monkeypatch.setattr(auto_servers.os, "cpu_count", lambda: 8)
    count = session.run(**AUTO)
    assert session.started == [(1, "apart", 1.0), (2, "spread", 0.0)]
    assert (count.servers, count.update_s, count.pushes_per_s) == (2, 0.1, pytest.approx(40))
    assert session.told == [count.sentence]
    assert "a part below 4 MiB" in count.sentence
    session.run("ssp", seed=3, **AUTO)
    assert session.started[2:] == [(2, "spread", 0.0)], "a comparison measures once"
    assert session.told == [count.sentence]
    session.run("ssp", batch_size=64, **AUTO)
    assert len(session.started) == 5, "another batch takes another time"
    session.run("ssp", batch_size=64, update={"optimizer": "adam"}, **AUTO)
    assert len(session.started) == 7, "and so does another optimizer"


def test_a_run_whose_server_is_fast_enough_is_started_once(session):
    session.update = UpdatePace(0.001, 1)
    count = session.run(**AUTO)
    assert [servers for servers, *_ in session.started] == [count.servers] == [1]
    assert "busy 4 % of the time" in session.told[0]


def test_a_fixed_number_is_what_it_is(session):
    assert session.run(cluster={"server_shards": 3}) is None
    assert session.started == [(3, "apart", 0.0)]
    assert session.told == []


def test_stages_have_one_server_each(session):
    assert session.run("decoupled", **AUTO, workers=[{"count": 2}]) is None
    assert len(session.started) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"update": {"clip_norm": 1.0}}, "with update.clip_norm"),
        ({"model": "mlp"}, "its 0.018 MiB are not worth another"),
    ],
)
def test_what_keeps_one_server_is_told_and_nothing_is_measured(session, settings, says):
    session.paces = [RuntimeError("not asked")]
    assert session.run(**AUTO, **settings).servers == 1
    assert len(session.started) == 1
    assert says in session.told[0]


def test_a_trial_keeps_one_server(session):
    session.within = object()
    assert "the places of a trial" in session.run(**AUTO).why
    assert len(session.started) == 1


def test_a_run_that_goes_on_keeps_its_number(session):
    cut = Checkpoint.__new__(Checkpoint)
    object.__setattr__(cut, "servers", {"server": [b"", b"", b""]})
    session.paces = [RuntimeError("not asked")]
    assert session.run(checkpoint=cut, **AUTO).servers == 3
    assert session.started == [(3, "spread", 0.0)]


def test_where_there_is_no_room_it_is_one(session, monkeypatch):
    session.refused = (2,)
    assert session.run(**AUTO).servers == 1
    assert [servers for servers, *_ in session.started] == [1, 2, 1]
    assert "there is no room for more at present" in session.told[-1]
    session.run("bsp", **AUTO)
    assert [servers for servers, *_ in session.started] == [1, 2, 1, 1], "nor is it tried again"


def test_where_the_cluster_has_no_room_nothing_is_started_again(session, monkeypatch):
    def refuses(experiment):
        if experiment.cluster.servers > 1:
            raise ConfigError("too small")

    monkeypatch.setattr(auto_servers, "placed", refuses)
    assert session.run(**AUTO).servers == 1
    assert len(session.started) == 1
    assert "the cluster has no room for more" in session.told[0]


def test_where_nothing_can_be_timed_it_is_one(session):
    session.paces = [ActorDiedError()]
    count = session.run(**AUTO)
    assert (count.servers, count.update_s) == (1, None)
    assert "no step could be timed" in session.told[0]


# ---- what is timed ----


def test_the_first_step_does_not_count_and_a_long_one_is_enough(monkeypatch):
    def timed(*seconds):
        now, steps = [0.0], []

        def step(number):
            now[0] += seconds[number]
            steps.append(number)

        monkeypatch.setattr(paces, "now_s", lambda: now[0])
        return paces.timed(step), len(steps)

    assert timed(1.0, 0.1, 0.3, 0.2) == (pytest.approx(0.2), 4)
    assert timed(5.0) == (5.0, 1)
    assert timed(1.5, 1.0) == (pytest.approx(1.0), 2)


@pytest.mark.parametrize("update", [{}, {"delay_compensation": "adaptive", "optimizer": "sgd"}])
def test_a_large_model_is_timed_by_a_part_of_it(monkeypatch, update):
    monkeypatch.setattr(paces, "SLICE_BYTES", 4000)
    put = []
    monkeypatch.setattr(paces.ray, "put", put.append)
    monkeypatch.setattr(paces, "timed", lambda step: [step(number) for number in (0, 1)] and 0.5)
    pace = paces.update_pace(None, config.Update(**update), 12_000)
    assert pace.update_s == 1.5
    assert [len(each) for each in put] == [4000] * 2


def test_the_pace_of_an_emulated_worker(monkeypatch):
    context = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(paces.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(paces.torch, "get_num_threads", lambda: 2)
    steps = {0: 0.4, 1: 0.05}
    pace = paces.step_pace(0.1, lambda clock: steps[clock % 2], 0.3, on_gpu=False)
    assert (pace.node, pace.core_s) == ("here", 0.2)
    assert pace.cycle_s == pytest.approx((0.4 + 0.1) / 2 + 0.3), "a step takes what is computed"
    assert paces.step_pace(0.1, lambda clock: 0.0, 0.0, on_gpu=True).core_s == 0
