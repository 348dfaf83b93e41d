"""What limits a run, in clusters that were built around one limit each; and what the changes are
said to give, against running them.
"""

from dataclasses import replace
from itertools import product

import pytest

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.journal import Entry
from raysync.predict.diagnosis import PUSHES, SHARE, TRAINED_SHARE, bottleneck_of_run, diagnose
from raysync.predict.setting import Setting
from raysync.predict.variations import remedies as changes
from raysync.predict.worker_count import without
from raysync.results.sentences import best_change, bottleneck, describe_bottlenecks
from raysync.running.engines import engine_for
from raysync.running.run import run_in
from raysync.training.preparation import prepare
from tests.builders.messages import tells
from tests.builders.plans import BYTES
from tests.builders.virtual import run, timed

FOUR = [{"count": 4, "step_s": 1}]
DEFAULTS = {"workers": FOUR, "workload": {"samples": 80}}
SERVER_S = {"server_bandwidth_bytes_per_s": BYTES, "share_sigma": 0}
"""A server's link on which a vector takes 1 s."""
VECTOR_S = {"bandwidth_bytes_per_s": BYTES / 2}
"""A link on which a vector takes 2 s."""


def setting_of(paradigm="bsp", **settings):
    choice = ParadigmChoice.model_validate({"name": paradigm})
    setting = Setting.of(timed(**DEFAULTS | settings), choice)
    assert setting is not None
    return setting


def seconds_of(settings, paradigm="bsp", **parameters):
    """Of a run."""
    return run(timed(**DEFAULTS | settings), paradigm, **parameters)[-1].at


LIMITS = {
    "server link": ({"network": SERVER_S}, "the server's link"),
    "server update": ({"network": {"update_s": 2}}, "the server's update"),
    "link": ({"network": {"link": VECTOR_S}}, "the link of every worker"),
    "slowest worker": (
        {"workers": [{"name": "quick", "count": 3, "step_s": 1}, {"name": "slow", "step_s": 4}]},
        "slow-0",
    ),
    "fault": (
        {"faults": [{"kind": "slow-down", "workers": ["worker-1"], "factor": 5}]},
        "slow-down faults",
    ),
    "computing": ({"network": {"update_s": 1e-3}}, "computing"),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_a_cluster_built_around_one_limit(kind):
    settings, what = LIMITS[kind]
    found = diagnose(setting_of(**settings))
    assert found.kind == kind
    assert what in found.plain()["what"]
    assert found.seconds == seconds_of(settings)
    if found.bottleneck is not None:
        assert found.bottleneck.seconds == pytest.approx(20), "20 rounds of the 1 s that is left"


def test_the_link_of_one_group_is_named():
    far = {"name": "far", "step_s": 1, "link": VECTOR_S}
    workers = [{"name": "near", "count": 3, "step_s": 1}, far]
    found = diagnose(setting_of(workers=workers))
    assert (found.kind, found.bottleneck.what) == ("link", "far-0's own link")


def test_links_that_only_together_are_the_limit_are_named_together():
    """One worker: its own link and the server's are on the way at once, so neither alone is."""
    network = {"link": VECTOR_S, "server_bandwidth_bytes_per_s": BYTES / 2, "share_sigma": 0}
    found = diagnose(setting_of(workers=[{"step_s": 1}], network=network))
    assert found.kind == "network"
    assert found.bottleneck.seconds == pytest.approx(80)


def test_varying_steps_are_a_slowest_worker_of_the_moment():
    varying = {
        "workers": [{"count": 4, "step_s": 1, "jitter": {"sigma": 0.4}}],
        "workload": {"samples": 800},
    }
    found = diagnose(setting_of(**varying))
    assert found.kind == "slowest worker"
    assert "vary" in found.bottleneck.what
    assert diagnose(setting_of("asp", **varying)).kind == "computing"


EVERYTHING = {
    "workers": [
        {"name": "quick", "count": 3, "step_s": 1, "jitter": {"sigma": 0.2}},
        {"name": "slow", "count": 2, "step_s": 3},
    ],
    "network": {
        **SERVER_S,
        "link": {"latency_s": 0.01, "bandwidth_bytes_per_s": BYTES},
        "update_s": 0.1,
        "update_bytes_per_s": 10 * BYTES,
    },
    "faults": [
        {"kind": "slow-down", "workers": ["quick-2"], "factor": 2, "start_s": 5, "lasts_s": 9}
    ],
}


@pytest.mark.parametrize("paradigm", ["bsp", "asp", "ssp"])
def test_what_a_change_gives_is_what_running_it_gives(paradigm):
    quick, slow = EVERYTHING["workers"]
    direct = {
        "wire: int8": seconds_of(EVERYTHING | {"cluster": {"wire": "int8"}}, paradigm),
        "group slow": seconds_of(EVERYTHING | {"workers": [quick]}, paradigm),
        "leaving out quick-2": seconds_of(
            EVERYTHING | {"faults": [], "workers": [quick | {"count": 2}, slow]}, paradigm
        ),
    }
    for shards, placement in product((1, 2, 4, 5), ("apart", "with-workers")):
        cluster = {"server_shards": shards, "server_placement": placement}
        key = f"server_shards: {shards}, server_placement: {placement}"
        direct[key] = seconds_of(EVERYTHING | {"cluster": cluster}, paradigm)
    if paradigm == "bsp":
        direct["all-reduce"] = seconds_of(EVERYTHING, "bsp", exchange="all-reduce")
    seen = set()
    for change in changes(setting_of(paradigm, **EVERYTHING)):
        [key] = [key for key in direct if key in change.what]
        assert change.setting.seconds() == pytest.approx(direct[key]), change.what
        seen.add(key)
    assert seen == direct.keys() - {"server_shards: 1, server_placement: apart"}


UNEQUAL = {
    "batch_size": 30,
    "workers": [
        {"name": "quick", "count": 3, "step_s": 1, "jitter": {"sigma": 0.05}},
        {"name": "slow", "step_s": 4},
    ],
}


@pytest.mark.parametrize(
    ("paradigm", "samples"), [("bsp", 2_400), ("bsp", 60_000), ("ssp", 60_000)]
)
def test_what_batches_by_speed_give_is_what_running_them_gives(paradigm, samples):
    """Also where only a part is simulated: the first rounds, which are not divided yet, are no
    larger a share than of the whole.
    """
    settings = UNEQUAL | {"workload": {"samples": samples}}
    found = diagnose(setting_of(paradigm, **settings)).change
    inner = {} if paradigm == "bsp" else {"paradigm": {"name": paradigm}}
    choice = ParadigmChoice.model_validate({"name": "balanced", **inner})
    assert choice.label in found.what
    assert found.seconds == pytest.approx(seconds_of(settings, choice), rel=0.03)


@pytest.mark.parametrize("size", [8, 64, 96])
def test_to_leave_out_a_worker_whose_batches_have_another_size(size):
    """The others then do its samples: two of them 32 in 0.04 s each, so 6,400 in 4 s."""
    fast = {"name": "fast", "count": 2, "step_s": 0.04, "batch_size": 32}
    slow = {"name": "slow", "step_s": 2.0, "batch_size": size}
    found = diagnose(setting_of(workers=[fast, slow], workload={"samples": 6400}))
    assert tells(found.change.what, "slow-0")
    assert found.change.seconds == pytest.approx(4.0, rel=0.02)
    pushing = setting_of("asp", workers=[fast, slow], workload={"samples": 6400})
    change = diagnose(pushing).change
    assert change is None or change.seconds < pushing.seconds()


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": FOUR, "batch_size": 30},
        UNEQUAL | {"batch_size": 1},
        UNEQUAL | {"micro_batch": 8},
    ],
    ids=["equal workers", "nothing to move", "no whole micro-batches"],
)
def test_batches_are_left_as_they_are_where_they_cannot_be_divided(settings):
    settings = {"workload": {"samples": 2_400}} | settings
    for paradigm in ("bsp", "balanced"):
        tried = [each.what for each in changes(setting_of(paradigm, **settings))]
        assert not any("balanced" in each for each in tried)


TABLES = {
    "slow worker": UNEQUAL,
    "slow link": UNEQUAL | {"network": {"link": VECTOR_S}},
    "slow server": UNEQUAL | {"network": SERVER_S},
    "almost equal": {
        "batch_size": 30,
        "workers": [{"name": "a", "count": 3, "step_s": 1}, {"name": "b", "step_s": 1.2}],
        "network": {"link": {"latency_s": 0.1, "bandwidth_bytes_per_s": BYTES}},
    },
}
ROWS = (
    {"name": "bsp"},
    {"name": "bsp", "exchange": "ring"},
    {"name": "asp"},
    {"name": "ssp", "staleness": 3},
    {"name": "k-sync", "k": 3},
    {"name": "balanced"},
    {"name": "balanced", "paradigm": {"name": "bsp", "exchange": "ring"}},
    {"name": "balanced", "hysteresis": 0.5},
)


@pytest.mark.parametrize("name", TABLES)
def test_no_row_of_the_same_updates_is_better_than_what_helps_most(tmp_path, name):
    settings = TABLES[name] | {"workload": {"samples": 2_400}, "output": str(tmp_path)}
    training = timed(**settings)
    summaries = {}
    with engine_for(training.experiment) as engine:
        for row in ROWS:
            choice = ParadigmChoice.model_validate(row)
            if "ring" in choice.label and not training.experiment.describes_all_reduce:
                continue
            record = run_in(engine, training, choice, diagnose=bottleneck_of_run)
            summaries[choice.label] = record.summary
    of_bsp = {label for label in summaries if label.startswith(("bsp", "balanced"))}
    assert all(summaries[label]["bottleneck"] for label in of_bsp)
    for label, summary in summaries.items():
        best = best_change(summary, summaries)
        _, least_s = best or (None, summary["seconds"])
        assert least_s <= summary["seconds"]
        if label in of_bsp:
            # what saves less than 2 % is not named
            assert all(0.98 * least_s <= summaries[each]["seconds"] for each in of_bsp)
            assert best is None or all(least_s <= summaries[each]["seconds"] for each in of_bsp)
    alone = best_change(summaries["bsp"], {})
    if name == "slow worker":
        assert "leaving out" not in alone[0]
        assert "balanced" in alone[0]
    assert best_change(summaries["asp"], summaries) == best_change(summaries["asp"], {})


FRESH = {"status": "finished", "samples": 10, "updates": 5, "pushes": 10, "seconds": 10.0}
FRESH |= {"staleness_max": 0, "dropped": 0}
BSP = FRESH | {"bottleneck": {"change": "leaving out slow-0", "change_s": 8.0}}
BETTER = FRESH | {"seconds": 6.0}


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        (BETTER, 6),
        (BETTER | {"seconds": 9.0}, 8),
        (BETTER | {"staleness_max": 1}, 8),
        (BETTER | {"dropped": 1}, 8),
        (BETTER | {"updates": 6}, 8),
        (BETTER | {"status": "failed"}, 8),
    ],
    ids=["faster", "slower", "stale", "dropping", "of smaller updates", "failed"],
)
def test_a_row_of_the_table_is_named_where_no_change_is_as_good(row, seconds):
    assert best_change(BSP, {"bsp": BSP, "x": row})[1] == seconds


def test_where_no_change_is_known_only_a_row_is_named():
    nothing = BSP | {"bottleneck": {"change": None, "change_s": None}}
    assert best_change(nothing, {"bsp": nothing}) is None
    assert best_change(nothing, {"x": BETTER})[1] == 6
    limit = {"kind": "slowest worker", "what": "slow-0", "without_s": 5.0}
    told = BSP | {"bottleneck": BSP["bottleneck"] | limit}
    for rows, is_named in (([None, told], True), ([told, None], False)):
        said = describe_bottlenecks({"bsp": rows, "row": [None, BETTER]})
        assert any("row" in each for each in said) == is_named


def test_the_simplest_of_equally_good_changes_is_named():
    """Four servers share what one server's link could not carry; more give nothing."""
    network = {"server_bandwidth_bytes_per_s": 100 * BYTES}
    setting = setting_of(workers=[{"count": 16, "step_s": 0.04}], network=network)
    apart = [change.setting.seconds() for change in changes(setting) if "apart" in change.what]
    assert diagnose(setting).change.seconds <= 1.02 * min(apart)


def test_a_long_run_is_simulated_in_part_and_scaled():
    network = {"server_bandwidth_bytes_per_s": 2 * BYTES, "share_sigma": 0}
    settings = {"workload": {"samples": 20_000}, "network": network}
    setting, whole = setting_of("asp", **settings), seconds_of(settings, "asp")
    assert diagnose(setting, whole).seconds == whole
    assert diagnose(setting).seconds == pytest.approx(whole, rel=0.05)
    exact = seconds_of(settings | {"cluster": {"server_shards": 2}}, "asp")
    part = setting.shortened(96)
    assert part.pushes == 96
    change = next(each for each in changes(part) if each.what.startswith("2 servers apart"))
    assert change.setting.seconds() * whole / part.seconds() == pytest.approx(exact, rel=0.05)


PASSING = {"kind": "slow-down", "factor": 2, "clocks": [100, None]}


@pytest.mark.parametrize(
    "settings",
    [
        {"faults": [PASSING], "workload": {"samples": 20_000}},
        {"workers": [{"count": 5_000, "step_s": 1}], "workload": {"samples": 100_000}},
        {},
        {"workload": {"samples": 20_000}},
    ],
    ids=["passing faults in a long run", "many workers", "nothing is described", "nothing, long"],
)
def test_nothing_is_said_where_nothing_is_described_or_it_would_take_long(settings):
    assert diagnose(setting_of("asp", **settings)) is None


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("workers", "samples"), [(2, 5_000), (30, 3_000), (60, 20_000)])
def test_all_simulations_together_are_bounded(workers, samples, trained, monkeypatch):
    simulated = []

    def seconds(setting):
        simulated.append(setting.pushes)
        return 1.0

    monkeypatch.setattr(Setting, "seconds", seconds)
    described = EVERYTHING | {"workers": [{"count": workers, "step_s": 1}], "faults": []}
    setting = setting_of("asp", **described, workload={"samples": samples})
    setting = replace(setting, trained=trained)
    found = diagnose(setting)
    share = TRAINED_SHARE if trained else SHARE
    assert sum(simulated) <= PUSHES + share * samples
    assert (found is None) == (not simulated)
    assert all(5 * workers <= each <= 24 * workers for each in simulated)


def test_workers_that_are_left_keep_their_faults_traces_and_nodes():
    """The steps of the n-th worker last n seconds; the first and the third go, and so does the
    fault of the first.
    """
    far = {"name": "far", "step_s": 9, "count": 2}
    setting = setting_of(
        workers=[{"count": 4, "trace": [[1.0], [2.0], [3.0], [4.0]]}, far],
        faults=[
            {"kind": "crash", "worker": "worker-0", "at_s": 5},
            {"kind": "crash", "worker": "worker-3", "at_s": 6},
            {"kind": "slow-down", "workers": ["worker-0", "worker-1", "far"], "factor": 2},
        ],
        network={"nodes": [{"name": "a", "workers": ["worker-3"]}]},
    )
    smaller = without(setting, ["worker-0", "worker-2", "far-0"])
    assert smaller.steps_s == {"worker-0": 2, "worker-1": 4, "far-0": 9}
    crash, slow = smaller.experiment.faults
    assert (crash.worker, slow.workers) == ("worker-1", ("worker-0", "far-0"))
    assert smaller.experiment.network.nodes[0].workers == ("worker-1",)
    assert smaller.seconds() > 0
    assert without(setting, list(setting.groups)) is None


def test_a_fault_that_is_always_there_is_simulated_in_part():
    slow = {"kind": "slow-down", "factor": 5, "workers": ["worker-1"]}
    settings = {"faults": [slow], "workload": {"samples": 20_000}}
    found = diagnose(setting_of("bsp", **settings))
    assert (found.kind, found.change.what) == ("fault", "leaving out worker-1")
    assert found.seconds == pytest.approx(seconds_of(settings))


def test_a_network_in_stages_is_not_simulated():
    stages = ParadigmChoice.model_validate({"name": "decoupled", "modules": 2})
    assert Setting.of(timed(workers=FOUR), stages) is None


def test_the_four_shares_are_all_of_a_workers_time():
    """A step of 1 s, ways of 2.5 s each, and 3 s at the server; the first weights are there at
    once.
    """
    training = timed(
        workers=[{"step_s": 1}],
        network={"link": {"latency_s": 0.5, **VECTOR_S}, "update_s": 3},
        workload={"samples": 10},
    )
    lines = run(training, "asp")
    reports = [line.report for line in lines if isinstance(line, Entry)]
    assert [report.server_s or 0 for report in reports[1:]] == [0, *[3] * 9]


def test_the_record_and_its_sentence(tmp_path):
    experiment = config.validate(
        {
            "engine": "virtual",
            "timing": "only",
            "batch_size": 1,
            "workers": FOUR,
            "workload": {"samples": 80},
            "network": {"server_bandwidth_bytes_per_s": 4e4, "update_s": 0.25},
            "output": tmp_path,
        }
    )
    training = replace(prepare(experiment), vector_bytes=40_000)
    with engine_for(experiment) as engine:
        record = run_in(engine, training, experiment.paradigm, diagnose=bottleneck_of_run)
    summary = record.summary
    [first, *_] = summary["per_worker"]
    parts = sum(first[part] for part in ("busy_s", "transfer_s", "server_s", "wait_s"))
    assert parts == pytest.approx(summary["seconds"])
    shares = [summary[f"{part}_fraction"] for part in ("busy", "transfer", "server", "wait")]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0.01
    said = bottleneck(summary)
    assert tells(said, "server's link")
    assert tells(said, "4 cluster: {server_shards: 4")


def test_a_cause_is_named_only_where_it_explains_four_fifths_of_what_is_lost():
    """Of a barrier's rounds of 2 s the slow worker's steps explain all; where half of a round is
    the network's, neither of the two is the cause.
    """
    workers = [{"name": "fast", "count": 3, "step_s": 1.0}, {"name": "slow", "step_s": 2.0}]
    alone = diagnose(setting_of(workers=workers, network={}))
    assert alone.computing_s == pytest.approx(alone.seconds / 2 / (3.5 / 4), rel=0.02)
    both = diagnose(setting_of(workers=workers, network={"link": {"bandwidth_bytes_per_s": BYTES}}))
    for found, is_cause in ((alone, True), (both, False)):
        summary = {"bottleneck": found.plain(), "seconds": found.seconds}
        named = bottleneck(summary).startswith("The bottleneck is")
        assert named == is_cause
        explained = found.seconds - found.bottleneck.seconds
        assert (explained >= 0.8 * (found.seconds - found.computing_s)) == is_cause
    earlier = {key: value for key, value in both.plain().items() if key != "computing_s"}
    summary = {"bottleneck": earlier, "seconds": both.seconds}
    assert bottleneck(summary).startswith("The bottleneck is"), "a record of an earlier version"


def ring_of(setting):
    """The same run by all-reduce."""
    tried = [change.setting for change in changes(setting)]
    [ring] = [each for each in tried if each.choice.parameters.get("exchange") == "all-reduce"]
    return ring


@pytest.mark.parametrize("placement", ["apart", "with-workers", "spread"])
def test_an_all_reduce_takes_as_long_wherever_servers_would_be(placement):
    """Nothing goes through them; so it is also a change for a run that has them beside workers."""
    network = {"link": {"bandwidth_bytes_per_s": BYTES}}
    cluster = {"server_shards": 2, "server_placement": placement}
    setting = setting_of(network=network, cluster=cluster)
    assert ring_of(setting).seconds() == ring_of(setting_of(network=network)).seconds()
    assert diagnose(setting) is not None
