"""What an exchange costs in a prediction, and where curves bend: against closed forms."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings, strategies as st

from raysync import config
from raysync.config import Link, ParadigmChoice
from raysync.errors import ConfigError
from raysync.predict.candidates import Candidate, candidates_of, paradigms_in
from raysync.predict.curves import Axis, axis_of, curves
from raysync.predict.exchange import Exchange, bytes_per_s, exchange_of, size_of
from raysync.predict.measured_ranks import MeasuredRanks
from raysync.predict.setting import Setting
from raysync.predict.simulation import simulate
from raysync.predict.step_times.rank_step_times import RankStepTimes
from raysync.predict.what_if import PredictionOptions, predict
from raysync.training.preparation import prepare
from tests.builders.messages import naming

STEP_S, BATCH = 1.0, 8
BYTES, RATE = 1_000_000, 10_000_000  # a tenth of a second
ASP, BSP = ParadigmChoice(name="asp"), ParadigmChoice(name="bsp")
RING = ParadigmChoice(name="bsp", exchange="ring")
TWO = RankStepTimes("a test", {"a": (1.0,), "b": (1.5,)})


def exchange(**changes):
    return replace(Exchange(BYTES, Link(bandwidth_bytes_per_s=RATE)), **changes)


def ranks(count=4, steps_each=40, **changes):
    steps = {f"rank{number}": (STEP_S,) for number in range(count)}
    return MeasuredRanks(steps, BATCH, steps_each, exchange(**changes))


def seconds_of(measured, choice):
    setting = measured.setting(Candidate(choice))
    return simulate(setting.training, choice).summary["seconds"] / measured.steps_each


def test_a_round_over_a_ring_takes_the_step_and_the_ring():
    """2 (n - 1) / n of the vector, and as many latencies."""
    link = Link(bandwidth_bytes_per_s=RATE, latency_s=0.01)
    expected = STEP_S + 2 * 3 / 4 * 0.1 + 6 * 0.01
    assert seconds_of(ranks(link=link), RING) == pytest.approx(expected)


def test_a_round_over_a_server_takes_the_step_and_its_link_twice_for_each_worker():
    assert seconds_of(ranks(), BSP) == pytest.approx(STEP_S + 2 * 4 * 0.1, rel=0.02)


def test_a_ring_over_nodes_crosses_each_nodes_link_once():
    assert seconds_of(ranks(nodes=2), RING) == pytest.approx(seconds_of(ranks(), RING))


def test_ranks_of_a_node_share_its_link():
    """Two nodes of two ranks, at a server whose link is no limit: each sends two vectors."""
    network = ranks(nodes=2).experiment.network
    fast = network.model_copy(update={"server_bandwidth_bytes_per_s": None})
    setting = ranks(nodes=2).setting(Candidate(BSP)).change(network=fast)
    took = simulate(setting.training, BSP).summary["seconds"] / 40
    assert took == pytest.approx(STEP_S + 2 * 2 * 0.1, rel=0.02)


def test_one_slow_link_is_that_ranks_alone():
    slow = {"rank3": Link(bandwidth_bytes_per_s=RATE / 10)}
    asp = ranks(of_ranks=slow, steps_each=200).setting(Candidate(ASP))
    waits = simulate(asp.training, ASP).summary["per_worker"]
    pushes = [each["pushes"] for each in waits]
    # 1 s + 2 * 0.1 s of the others, and 1 s + 2 * 1 s
    assert pushes[3] / pushes[0] == pytest.approx(1.2 / 3, rel=0.1)
    assert seconds_of(ranks(of_ranks=slow), RING) == pytest.approx(STEP_S + 2 * 3 / 4 * 1.0)


def test_a_ring_waits_for_the_latency_of_one_slow_link():
    slow = {"rank3": Link(bandwidth_bytes_per_s=RATE, latency_s=0.05)}
    expected = STEP_S + 2 * 3 / 4 * 0.1 + 6 * 0.05
    assert seconds_of(ranks(of_ranks=slow), RING) == pytest.approx(expected)


def only(axis, choice, measured):
    [curve] = curves(measured, [Candidate(choice)], [axis_of(axis)], processes=1)
    return curve


def test_under_asp_the_servers_link_is_full_where_its_capacity_is():
    """A worker pushes every 1.2 s, and the link takes 10 pushes a second: 12 fill it. From
    10 / (1 / 1.2 + 0.1) = 10.7 on, twice as many add less than a tenth of their computing; later,
    since shares of a link are not even, so that fewer than 12 do not always fill it.
    """
    curve = only("workers=1..64", ASP, ranks())
    assert 10.7 < curve.knee < 16
    assert "server" in curve.limit
    assert curve.points[-1].samples_per_s == pytest.approx(10 * BATCH, rel=0.05)
    assert curve.points[0].efficiency == pytest.approx(1 / 1.2, rel=0.02)


def test_a_ring_is_never_full():
    curve = only("workers=2..64", RING, ranks())
    assert (curve.knee, curve.limit) == (None, "")


@pytest.mark.parametrize(
    ("axis", "knee"),
    [
        # 0.15 s of 1 s have to become a ninth of it
        ("link=10mbit..10gbit", RATE * 0.15 * 9),
        ("steps=1..128", 2),
        ("batch=1..512", BATCH * 2 - 5),
    ],
)
def test_a_ring_is_no_limit_from_where_it_takes_a_tenth(axis, knee):
    curve = only(axis, RING, ranks())
    assert curve.knee == pytest.approx(knee, rel=0.06)
    assert "link" in curve.limit
    rates = [point.samples_per_s for point in curve.points]
    assert rates == sorted(rates)


def test_what_takes_no_time_bends_nowhere_and_more_workers_add_up():
    free = replace(ranks(), exchange=None)
    curve = only("workers=1..16", ASP, free)
    assert curve.knee is None
    assert [each.efficiency for each in curve.points] == pytest.approx([1.0] * 5)
    assert [each.seconds for each in curve.points] == pytest.approx(
        [4 * 40 * STEP_S / at for at in (1, 2, 4, 8, 16)]
    )


steps = st.lists(st.floats(0.1, 10), min_size=1, max_size=5).map(tuple)


@settings(deadline=None)
@given(st.lists(steps, min_size=1, max_size=7), st.integers(1, 20))
def test_more_or_fewer_ranks_take_measured_steps_evenly_often(measured, count):
    own = {f"r{number}": each for number, each in enumerate(measured)}
    resized = MeasuredRanks(own, BATCH, 100, None).resized(count)
    assert len(resized.steps) == count
    turned = [{times[at:] + times[:at] for at in range(len(times))} for times in own.values()]
    assert all(any(each in those for those in turned) for each in resized.steps.values())
    if count % len(own) == 0:
        whole, once = (sum(map(fmean, steps.values())) for steps in (resized.steps, own))
        assert whole == pytest.approx(once * count / len(own))
    if count == len(own):
        assert sorted(resized.steps.values()) == sorted(own.values())


def test_each_paradigm_meets_each_exchange_that_it_goes_with():
    both = exchange(servers=(1, 2), collectives=("ring", "tree"))
    labels = [each.label for each in candidates_of([ASP, BSP, RING], both)]
    assert labels == [
        "asp, 1 server apart",
        "asp, 2 servers apart",
        "bsp, 1 server apart",
        "bsp, 2 servers apart",
        "bsp(exchange=ring)",
        "bsp(exchange=tree)",
    ]
    with pytest.raises(ConfigError, match=naming("--exchange: asp server")):
        candidates_of([ASP], exchange(servers=()))


def test_a_rank_that_is_there_twice_has_its_own_link_twice():
    slow = Link(bandwidth_bytes_per_s=RATE / 10)
    doubled = ranks(of_ranks={"rank3": slow}).resized(8)
    links = [node.link for node in doubled.experiment.network.nodes]
    assert len(links) == 8
    assert links.count(slow) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1gbit", 125e6), ("10Gb/s", 1.25e9), ("100 Mbps", 12.5e6), ("1.5GB/s", 1.5e9)],
)
def test_rates_are_bits_with_a_small_b_and_bytes_with_a_large_one(text, expected):
    assert bytes_per_s(text, "--link") == expected


@pytest.mark.parametrize("text", ["", "1", "1e9", "gbit", "-1gbit", "0gbit", "nan gbit", "1 apple"])
def test_a_rate_or_a_size_without_number_or_unit_is_refused(text):
    for read in (bytes_per_s, size_of):
        with pytest.raises(ConfigError, match=naming("--option:")):
            read(text, "--option")


ALL = {"model_bytes": 4, "links": ["1gbit"], "nodes": None, "exchanges": [], "ranks": ["r0", "r1"]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"links": [], "nodes": 2}, "--nodes: --link 1gbit"),
        ({"links": [], "exchanges": ["ring"]}, "--exchange: --link 1gbit"),
        ({"model_bytes": None}, "--link: --model-bytes"),
        ({"links": ["1gbit,5"]}, "--link 1gbit,5: latency"),
        ({"links": ["r3=1gbit", "1gbit"]}, "--link r3=1gbit: 'r3'"),
        ({"links": ["r0=1gbit"]}, "--link r0=1gbit: others"),
        ({"exchanges": ["servers"]}, "--exchange servers: servers:N ring tree"),
        ({"exchanges": ["servers:0"]}, "--exchange servers:0: 1"),
        ({"exchanges": ["rings"]}, "--exchange rings: servers:N ring tree"),
    ],
)
def test_what_is_missing_or_wrong_is_said(changes, says):
    with pytest.raises(ConfigError, match=naming(says)):
        exchange_of(**ALL | changes)


@pytest.mark.parametrize("span", ["", "=4", "=1..", "=0..4", "=4..1", "=1..99999999", "=1..2.5"])
def test_an_axis_without_an_end_is_refused(span):
    with pytest.raises(ConfigError, match=naming(f"--curve workers{span}")):
        axis_of(f"workers{span}")


@pytest.mark.parametrize("text", ["worker=1..4", "link=1..10", "link=1gbit.."])
def test_an_axis_without_a_name_or_a_unit_is_refused(text):
    with pytest.raises(ConfigError, match=naming(f"--curve {text}")):
        axis_of(text)


def test_the_points_of_an_axis_double_and_have_both_ends():
    assert axis_of("workers=3..20").points == [3, 6, 12, 20]
    assert axis_of("link=1gbit..1gbit").points == [125e6]
    assert Axis("steps", 1, 8).points == [1, 2, 4, 8]


def test_a_curve_of_local_steps_is_of_those_that_can_make_them():
    """Not of a paradigm that has its own, nor of one that releases workers on old weights."""
    choices = paradigms_in(
        ["bsp", "{name: local, paradigm: bsp, steps: 8}", "{name: k-batch-sync, k: 8}"]
    )
    axes = (axis_of("steps=1..4"),)
    answer = predict(TWO, PredictionOptions(8, 60, exchange=exchange(), axes=axes), choices)
    assert {one.label for one in answer.comparison.followed} > {"bsp"}
    assert [curve.candidate.label for curve in answer.curves] == ["bsp"]


def test_smaller_pushes_take_as_long_as_in_an_experiment_that_has_them():
    measured = ranks(3)
    coded = measured.setting(Candidate(BSP, wire="int8"))
    plain = measured.experiment.model_dump(mode="json")
    plain["cluster"]["wire"] = "int8"
    again = Setting.of(prepare(config.validate(plain)), BSP)
    assert coded.seconds() == again.seconds()
    assert coded.training.push_bytes == pytest.approx(BYTES / 4, rel=0.01)
    options = PredictionOptions(8, 60, exchange=exchange())
    found = predict(TWO, options).comparison
    assert found.get("bsp, pushes in int8").seconds < found.get("bsp").seconds
    alone = predict(TWO, options, [BSP]).comparison.predictions  # as it is
    assert {one.label for one in alone} == {"bsp", "bsp(exchange=ring)"}
