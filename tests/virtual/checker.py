"""What must hold on every line of every journal, written without the machine: from the
lines alone.
"""

from raysync.core.decisions import Apply, Drop, Hold, Release, Restore, Suspend, Switch
from raysync.core.events import Joined, Left, Pushed
from raysync.core.journal import Ended, Entry
from tests.builders.virtual import slot_of


class Checker:
    """Feed it the lines in order; it raises AssertionError at the first that cannot be."""

    def __init__(self, paradigm, lead_bound, workload_samples):
        """`paradigm`: its name; `lead_bound`: largest lead at a Release, None if the rule promises
        none.
        """
        self.paradigm, self.lead_bound, self.workload = paradigm, lead_bound, workload_samples
        self.now, self.version, self.samples = 0.0, 0, 0
        self.published = 0  # the version that is pulled
        self.ended = None
        self.clocks = {}  # member -> pushes, counted from the clock that it joined at
        self.stale = {}  # member -> those that its lead does not count, as dropped when they came
        self.computing = {}  # member -> (its Release, when)
        self.held = set()
        self.suspended = set()
        self.outdated = set()  # at a step from before their suspension
        self.pulled = {}  # member -> version of its latest pull
        self.used = set()  # every id that ever was
        self.floor = 0  # where a newcomer starts if nobody is there
        self.buffered, self.fate = {}, {}
        self.advanced = {}  # worker -> pushes
        self.longest_s = 0.0  # of all steps, from Release to Pushed

    def feed(self, line):
        assert self.ended is None, "a line after the end"
        assert self.samples < self.workload or isinstance(line, Ended), "the workload is done"
        if isinstance(line, Entry):
            self.take(line.event, line.report)
            for decision in line.decisions:
                self.obey(decision, line.event)
                if self.samples >= self.workload:
                    return  # what was decided after the last update is not executed
            assert set(self.clocks) == set(self.computing) | self.held
            assert not set(self.computing) & self.held
            fates = list(self.fate.values())
            assert sum(self.advanced.values()) == fates.count("applied") + fates.count(
                "dropped"
            ) + len(self.buffered)
        elif isinstance(line, Ended):
            self.end(line)

    def pace(self, worker):
        return self.clocks[worker] - self.stale[worker]

    def slowest(self):
        """Of those that take part; None: nobody does."""
        apart = self.suspended | self.outdated
        members = [worker for worker in self.clocks if worker not in apart]
        return min(members, key=lambda one: (self.pace(one), one), default=None)

    def enter(self, worker):
        """At the pace of the slowest."""
        slowest = self.slowest()
        if slowest is not None:
            self.stale[worker] = self.clocks[worker] - self.pace(slowest)

    def end(self, line):
        self.ended = line
        match line.status:
            case "finished":
                assert self.samples >= self.workload
                assert line.at >= self.now, "the last update is published after its last push"
            case "failed":
                assert line.error.startswith("every worker is gone"), line.error
                assert not self.clocks

    def take(self, event, report):
        assert event.at >= self.now, "time fell"
        self.now = event.at
        match event:
            case Joined(worker=worker):
                assert worker not in self.used, "an id is used once"
                assert slot_of(worker) not in map(slot_of, self.clocks), (
                    "a slot has one worker at a time"
                )
                self.used.add(worker)
                slowest = self.slowest()
                behind = self.floor if slowest is None else self.clocks[slowest]
                apart = [self.clocks[each] for each in self.suspended | self.outdated]
                clock = min([behind, *apart])
                pace = clock if slowest is None else self.pace(slowest)
                self.clocks[worker], self.stale[worker] = clock, clock - pace
                self.held.add(worker)
            case Left(worker=worker):
                self.floor = self.clocks.pop(worker)
                del self.stale[worker]
                self.computing.pop(worker, None)
                self.held.discard(worker)
                self.suspended.discard(worker)
                self.outdated.discard(worker)
            case Pushed(worker=worker, clock=clock, base=base):
                release, since = self.computing.pop(worker)
                assert clock == release.clock == self.clocks[worker], "clocks grow by one"
                assert release.version == self.pulled[worker]
                if report.held_back_s is not None and release.pull:
                    assert release.version <= base <= self.published
                    self.pulled[worker] = base
                assert base == self.pulled[worker], "computed on what was pulled"
                since += report.held_back_s or 0.0
                assert event.at >= since + event.busy_s > since
                assert (worker, clock) not in self.fate
                self.longest_s = max(self.longest_s, event.at - since)
                self.clocks[worker] += 1
                self.advanced[worker] = self.advanced.get(worker, 0) + 1
                self.held.add(worker)
                self.buffered[worker, clock] = event.samples
                if worker in self.outdated:
                    self.outdated.discard(worker)
                    if worker not in self.suspended:
                        self.enter(worker)

    def obey(self, decision, event):
        match decision:
            case Apply(pushes=pushes, version=version, publish=publish):
                assert version == self.version + 1, "versions are consecutive"
                assert pushes
                self.version = version
                self.published = version if publish else self.published
                if self.paradigm == "bsp":
                    assert not self.computing, (
                        "an update of BSP holds a push of every member that computed"
                    )
                    assert set(pushes) == set(self.buffered)
                elif self.paradigm in ("asp", "ssp", "lagtuner"):
                    assert pushes == ((event.worker, event.clock),)
                for push in pushes:
                    self.samples += self.buffered.pop(push)
                    self.fate[push] = "applied"
            case Drop(push=push):
                del self.buffered[push]
                self.fate[push] = "dropped"
                if decision.reason == "stale":
                    assert push == (event.worker, event.clock), "dropped as stale when it comes"
                    self.stale[event.worker] += 1
            case Release(worker=worker, clock=clock, version=version, pull=pull):
                assert worker in self.held
                assert clock == self.clocks[worker]
                if pull:
                    self.pulled[worker] = self.published
                assert version == self.pulled[worker]
                if self.lead_bound is not None:
                    lead = self.pace(worker) - min(map(self.pace, self.clocks))
                    assert lead <= self.lead_bound, "released too far ahead"
                self.held.discard(worker)
                self.computing[worker] = (decision, self.now)
            case Suspend(worker=worker):
                self.suspended.add(worker)
                if worker in self.computing:
                    self.outdated.add(worker)
            case Restore(worker=worker):
                if worker not in self.outdated:
                    self.enter(worker)
                self.suspended.discard(worker)
            case Hold(worker=worker, why=why):
                assert worker in self.held
                assert why
            case Switch():
                pace = min(map(self.pace, self.clocks))
                self.stale = {worker: clock - pace for worker, clock in self.clocks.items()}


def checked(lines, paradigm, lead_bound, workload_samples):
    """The checker after all lines of a run."""
    checker = Checker(paradigm, lead_bound, workload_samples)
    for line in lines:
        checker.feed(line)
    assert checker.ended is not None, "a run without an end"
    return checker
