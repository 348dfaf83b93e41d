"""LB-BSP (SoCC 2020) around other paradigms: batch sizes by the speeds of the workers."""

from dataclasses import dataclass

import pytest

from raysync.core.decisions import Apply, Note, Release
from raysync.core.machine import Machine
from raysync.errors import ConfigError, IllegalDecision
from raysync.paradigms import make
from raysync.paradigms.asp import ASP
from raysync.testing.drive import Drive
from tests.builders.messages import naming
from tests.builders.schedules import batch_sizes, of, released

FAST, SLOW = "w-0#1", "w-1#1"
OWN = 32


class Cluster:
    """A machine with workers of certain speeds, whose barriers it keeps: a round of `bsp`."""

    def __init__(self, *speeds, transfer_s=0.0, **parameters):
        self.workers = [f"w-{index}#1" for index in range(len(speeds))]
        self.drive = Drive(make("balanced", **parameters), *self.workers)
        self.speeds = dict(zip(self.workers, speeds, strict=True))
        self.transfer_s = transfer_s
        self.sizes = dict.fromkeys(self.workers, OWN)

    def round(self):
        """Let every worker push, the fastest first; return the decisions of the last push."""
        begun = self.drive.now
        ends = {
            worker: self.sizes[worker] / self.speeds[worker] for worker in self.drive.roster.live
        }
        for worker in sorted(ends, key=ends.get):
            at = begun + ends[worker] + self.transfer_s
            decisions = self.drive.push(worker, at, samples=self.sizes[worker], busy_s=ends[worker])
            self.take(decisions)
        return decisions

    def take(self, decisions):
        """Remember the sizes of the releases."""
        for release in of(Release, decisions):
            self.sizes[release.worker] = release.batch_size or OWN

    def in_order(self):
        return [self.sizes[worker] for worker in self.drive.roster.live]


def notes(decisions):
    return [note.values for note in of(Note, decisions)]


def test_the_batch_is_divided_by_the_speeds_and_its_size_is_kept():
    """b_i = B v_i / sum v: 128 by 3 : 2 : 2 : 1, after one round; then nothing changes."""
    cluster = Cluster(3, 2, 2, 1)
    first = cluster.round()
    assert cluster.in_order() == [48, 32, 32, 16]
    assert notes(first) == [
        {"smallest": 16, "largest": 48, "samples": 128, "before_s": 32.0, "predicted_s": 16.0}
    ]
    assert isinstance(first[0], Apply), "the round's update comes first, as under bsp alone"
    assert not notes(cluster.round())
    assert cluster.in_order() == [48, 32, 32, 16]


def test_speeds_are_smoothed_exponentially():
    """w-1 falls from speed 1 to 1/4. Its seconds a sample are then 1 + 0.3 x 3 = 1.9, after
    the next round 1.9 + 0.3 x 2.1 = 2.53: of 64 samples 64 / 2.9 and 64 / 3.53.
    """
    cluster = Cluster(1, 1)
    cluster.round()
    cluster.speeds[SLOW] = 0.25
    cluster.round()
    assert cluster.in_order() == [42, 22]
    cluster.round()
    assert cluster.in_order() == [46, 18]


def test_shares_settle_within_ten_rounds_after_a_change_of_speed():
    """1 : 1/4 is 51.2 and 12.8 of 64 samples; within the hysteresis of 5 % the slow one has 13."""
    cluster = Cluster(1, 1)
    cluster.round()
    cluster.speeds[SLOW] = 0.25
    for _ in range(10):
        cluster.round()
    assert cluster.in_order() == [51, 13]


LIMITS = {
    # 32 samples of the slow one take 33.7 s; 31 take 32.6 s, 3.1 % less
    "within the hysteresis": ((1, 0.95), {"hysteresis": 0.05}, [32, 32]),
    "beyond the hysteresis": ((1, 0.95), {"hysteresis": 0.02}, [33, 31]),
    "a sample for each device": (
        (1, 0.01),
        {"workers": {"w": {"batch_size": OWN, "devices": 4}}},
        [60, 4],
    ),
    # nothing told `balanced` that the workers' own batches are larger than `max_batch`
    "what was computed is allowed": ((3, 1), {"workers": {"w": {"max_batch": 10}}}, [32, 32]),
    "multiples": ((3, 2, 2, 1), {"multiple": 8}, [48, 32, 32, 16]),
    # an experiment refuses that
    "own batches that are no multiple": ((3, 1), {"multiple": 5}, [32, 32]),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_sizes_have_limits(limit):
    speeds, parameters, sizes = LIMITS[limit]
    cluster = Cluster(*speeds, **parameters)
    cluster.round()
    assert cluster.in_order() == sizes


def test_time_in_transfer_counts_as_a_fixed_part():
    """10 s + b against 10 s + b / 2: 64 samples are equally long at 22 and 42, not 21 and 43;
    with other workers' ways as long, only where computing does not pay is the difference seen.
    """
    near = Drive(make("balanced"), FAST, SLOW)
    near.push(FAST, 32, samples=OWN, busy_s=32)
    decisions = near.push(SLOW, 52, samples=OWN, busy_s=32)  # 20 s of them on the way
    assert batch_sizes(decisions) == [42, 22], "42 = 20 + 22"


def test_a_described_device_is_predicted_with_its_fixed_part_floor_and_memory():
    """Both take 1 + b / 32 s, and the slow one twice that, as it turns out.

    Equal times need 1 + b / 32 = 2 (1 + (64 - b) / 32): b = 53.3. If the slow one never takes less
    than 2 x 1.5 s, it does 16 samples in that time, and the fast one the 48 others in 2.5 s. If the
    memory of the fast one holds 40, the slow one has the rest.
    """
    fixed = {"batch_size": 32, "fixed_s": 1.0, "per_sample_s": 1 / 32}
    for fast, slow, sizes in [
        ({}, {}, [53, 11]),
        ({}, {"floor_s": 1.5}, [48, 16]),
        ({"max_batch": 40}, {"floor_s": 1.5}, [40, 24]),
    ]:
        workers = {"f": fixed | fast, "s": fixed | slow}
        drive = Drive(make("balanced", workers=workers), "f-0#1", "s-0#1")
        drive.push("f-0#1", 2, samples=32, busy_s=2)
        decisions = drive.push("s-0#1", 4, samples=32, busy_s=4)
        assert batch_sizes(decisions) == sizes


def test_around_asp_the_pace_is_equalised():
    """Nobody waits: w-0 pushes four times as often until the batch has been divided."""
    drive = Drive(make("balanced", paradigm="asp"), FAST, SLOW)
    sizes, pushed = {FAST: OWN, SLOW: OWN}, {FAST: 0, SLOW: 0}
    busy, ends = {FAST: 8.0, SLOW: 32.0}, {FAST: 8.0, SLOW: 32.0}
    for _ in range(40):
        worker = min(ends, key=ends.get)
        decisions = drive.push(worker, ends[worker], samples=sizes[worker], busy_s=busy[worker])
        assert released(decisions) == [worker]
        pushed[worker] += 1
        sizes[worker] = decisions[-1].batch_size or OWN
        busy[worker] = sizes[worker] / {FAST: 4, SLOW: 1}[worker]
        ends[worker] += busy[worker]
    assert sizes == {FAST: 51, SLOW: 13}
    assert busy[FAST] == pytest.approx(busy[SLOW], rel=0.05)
    assert pushed[FAST] - pushed[SLOW] <= 4, "only in the beginning"


def test_a_leaver_takes_its_own_size_with_it_and_its_next_life_has_its_speed():
    cluster = Cluster(2, 1, 1)
    cluster.round()
    assert cluster.in_order() == [48, 24, 24]
    drive, (a, b, c) = cluster.drive, cluster.workers
    drive.leave(c)
    cluster.round()
    assert cluster.in_order() == [43, 21], "64 by 2 : 1"
    decisions = drive.join("w-2#2")
    assert decisions[-1] == Release("w-2#2", clock=2, version=2, batch_size=24, lead=0)
    for worker in (a, b, "w-2#2"):
        decisions = drive.push(worker, drive.now + 24, samples=OWN, busy_s=24)
    assert sum(batch_sizes(decisions)) == 96


def test_a_worker_that_has_not_pushed_has_its_own_size():
    drive = Drive(make("balanced", paradigm="asp"), FAST)
    drive.push(FAST, 1, samples=OWN, busy_s=1)
    assert drive.join("w-1#1")[-1].batch_size is None
    assert drive.push(FAST, 2, samples=OWN, busy_s=1)[-1].batch_size is None
    drive.leave(FAST, 3)
    drive.join("w-2#1", 3)
    assert drive.push("w-2#1", 4, samples=OWN, busy_s=0)[-1].batch_size is None, "no time at all"


def test_what_the_inner_rule_decides_stays():
    """Pulls and phases, its timers, and its reasons."""
    switch = make("balanced", paradigm={"name": "sync-switch", "online": "greedy", "window": 1})
    assert (switch.phase, switch.phases()) == ("bsp", ("bsp", "asp"))
    drive = Drive(switch, FAST, SLOW, workload_samples=4 * OWN)
    assert (
        drive.push(FAST, 1, samples=OWN, busy_s=1)[-1].why
        == f"the round ends when {SLOW} has pushed"
    )
    [key] = drive.machine.timers
    drive.tick(key)
    decisions = drive.push(SLOW, 4, samples=OWN, busy_s=4)
    assert switch.phase == "asp"
    assert batch_sizes(decisions) == [51, 13]
    assert not switch.infeasible_reason(2)
    late = make("balanced", paradigm={"name": "k-sync", "k": 3})
    assert late.infeasible_reason(2).startswith("k-sync: k: 3 workers of 2")
    hybrid = make("balanced", paradigm={"name": "hybrid", "k": 1, "pull_interval": 2})
    drive = Drive(hybrid, FAST)
    pulls = [drive.push(FAST, at, samples=OWN, busy_s=1)[-1].pull for at in (1, 2, 3, 4)]
    assert sorted(set(pulls)) == [False, True]


def test_a_restored_machine_goes_on():
    cluster = Cluster(3, 1)
    cluster.round()
    machine = cluster.drive.machine
    restored = Machine.restore(machine.snapshot(), make("balanced"))
    assert restored.snapshot() == machine.snapshot()
    assert restored.paradigm.sizes == {"w-0": 48, "w-1": 16}


@dataclass
class Sized(ASP):
    """A user's own paradigm that sets sizes and does not say so."""

    name = "sized"

    def on_push(self, roster, push):
        return [Apply((push,)), Release(push[0], batch_size=3)]


def test_an_inner_paradigm_that_sets_sizes_is_refused():
    with pytest.raises(ConfigError, match=naming("ringmaster")):
        make("balanced", paradigm={"name": "ringmaster", "paradigm": "balanced"})
    drive = Drive(make("balanced", paradigm=f"{__name__}:Sized"), FAST)
    with pytest.raises(IllegalDecision, match=naming("Sized.on_push batch_size=3")):
        drive.push(FAST, 1)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"workers": {"w": {"maxbatch": 3}}}, "'maxbatch' 'max_batch'"),
        ({"workers": {"w": {"batch_size": 8, "max_batch": 4}}}, "batch_size: 8 1 4"),
        ({"workers": {"w": {"batch_size": 2, "devices": 4}}}, "allowed 4"),
        ({"workers": {"w": {"batch_size": 10}}, "multiple": 4}, "10 multiple 4"),
        ({"workers": {"w": {"per_sample_s": 0}}}, "per_sample_s: 0 0"),
        ({"workers": {"w": {"max_batch": -1}}}, "0"),
        ({"workers": {"w": {"devices": float("inf")}}}, "less than or equal"),
        ({"smoothing": 0}, "smoothing: 0"),
        ({"hysteresis": 1}, "hysteresis: 1"),
    ],
)
def test_what_is_wrong_is_named(parameters, says):
    with pytest.raises(ConfigError, match=naming(says)):
        make("balanced", **parameters)
