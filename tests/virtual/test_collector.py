"""What a journal makes of the metrics: their sums are the measures of the same journal, however its
lines are dealt out.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from math import isnan

import pytest
from hypothesis import event, given, settings, strategies as st

from raysync.config import ParadigmChoice, Target
from raysync.core.decisions import DROP_REASONS, Apply, Note, Release, Suspend
from raysync.core.events import Joined, Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Ended, Entry, Evaluation
from raysync.core.machine import Machine
from raysync.core.stages import rosters_in
from raysync.core.structs import encode
from raysync.engine.topology import rosters_by_stage
from raysync.paradigms import make
from raysync.record.collector import Collector
from raysync.record.measures import Measures
from raysync.record.metrics_registry import REGISTRY, RunLabels
from raysync.record.series import RunSeries
from raysync.virtual.engine import driver_of
from tests.builders.journals import FAST, journal
from tests.builders.paradigms import VARIANTS
from tests.builders.plans import plans
from tests.builders.schedules import joins, of, simulate
from tests.builders.virtual import cut_task, decided, decoupled, entries, interrupted, run, timed

SWITCHED = {
    "switch": ("sync-switch", {"fraction": 0.3}),
    "switch-elastic": (
        "sync-switch",
        {"online": "elastic", "window": 1, "windows": 1, "fraction": 0.6},
    ),
    "switch-greedy": (
        "sync-switch",
        {"online": "greedy", "window": 1, "windows": 2, "first": "bsp", "then": "lagtuner"},
    ),
}


LABELS = RunLabels("the experiment", "the run", "its rule")


class Published:
    """What a Prometheus would have seen of it all."""

    def __init__(self, workload, phase="bsp", targets=(), behind=None):
        self.measures = Measures(workload, *targets)
        if behind is not None:
            machine = behind.state["topology"]["machine"]
            self.measures.begin_at(rosters_in(machine), behind.at)
        self.collector = Collector(LABELS, phase, self.measures, per_worker_histograms=True)
        self.series, self.shown = RunSeries(), {}
        self.counters = defaultdict(float)
        self.histograms = defaultdict(list)
        self.gauges = {}

    def take(self, lines):
        collected = self.collector.collect(lines)
        self.gauges = collected.gauges
        self.shown.update(self.series.add(collected))
        for kind, keys in (
            ("counter", collected.counters),
            ("gauge", collected.gauges),
            ("histogram", collected.histograms),
        ):
            for name, labels in keys:
                metric = REGISTRY[name]
                assert metric.kind == kind, name
                assert labels[:3] == LABELS.values
                assert len(labels) == len(metric.labels)
        assert all(by >= 0 for by in collected.counters.values())
        for key, by in collected.counters.items():
            self.counters[key] += by
        for key, values in collected.histograms.items():
            self.histograms[key] += values
        return self

    def total(self, name):
        return sum(value for (metric, _), value in self.counters.items() if metric == name)

    def by(self, name):
        """Last label -> the counter's value."""
        return {
            labels[-1]: value for (each, labels), value in self.counters.items() if each == name
        }

    def now(self, name):
        """Last label -> the gauge's value."""
        return {labels[-1]: value for (each, labels), value in self.gauges.items() if each == name}

    def seen(self, name):
        return [
            value for (each, _), seen in self.histograms.items() if each == name for value in seen
        ]


def summed_up(lines, workload):
    measures = Measures(workload)
    rows = measures.feed(lines)
    rows += measures.close()
    return measures.summary(), rows


def check_against_the_record(published, lines, workload):
    summary, rows = summed_up(lines, workload)
    workers = defaultdict(Counter)
    for worker in summary["per_worker"]:
        for key in ("pushes", "busy_s", "wait_s"):
            workers[key][WorkerId(worker["id"]).slot] += worker[key]
    for name, key in (("pushes", "pushes"), ("busy_seconds", "busy_s"), ("wait_seconds", "wait_s")):
        assert published.by(f"raysync_{name}") == pytest.approx(dict(workers[key])), name
    assert published.total("raysync_transfer_seconds") == pytest.approx(
        sum(row.pushed_at_s - row.released_at_s - row.busy_s - row.server_s for row in rows),
        abs=1e-9,
    )
    for name, key in (("samples_applied", "samples"), ("updates", "updates"), ("drops", "dropped")):
        assert published.total(f"raysync_{name}") == summary[key], name
    switches = Counter(switch["to"] for switch in summary["switches"])
    assert published.by("raysync_switches") == switches
    for name, values in (
        ("busy_seconds", [row.busy_s for row in rows]),
        ("wait_seconds", [row.wait_s for row in rows]),
        ("lead_clocks", [row.lead for row in rows]),
        ("staleness_versions", [row.staleness for row in rows if row.staleness is not None]),
    ):
        assert sorted(published.seen(f"raysync_step_{name}")) == sorted(values), name
    assert len(published.seen("raysync_step_transfer_seconds")) == summary["pushes"]
    for name, value in (
        ("progress_ratio", min(1, summary["samples"] / workload)),
        ("model_versions", summary["updates"]),
        ("throughput_samples_per_second", summary["throughput_samples_per_s"]),
    ):
        assert published.now(f"raysync_{name}") == {LABELS.values[-1]: value}, name


def check_the_series(published):
    """What is shown of a run is what was collected: totals, counts up to each bound, no more."""
    expected = dict(published.gauges)
    for (name, labels), total in published.counters.items():
        expected[f"{name}_total", labels] = total
    for (name, labels), values in published.histograms.items():
        expected[f"{name}_sum", labels] = sum(values)
        expected[f"{name}_count", labels] = len(values)
        expected[f"{name}_bucket", (*labels, "+Inf")] = len(values)
    live = {series: value for series, value in published.shown.items() if not isnan(value)}
    for name, labels in live.keys() - expected.keys():
        values = published.histograms[name.removesuffix("_bucket"), labels[:-1]]
        expected[name, labels] = sum(value <= float(labels[-1]) for value in values)
    assert live == pytest.approx(expected)
    for (name, labels), values in published.histograms.items():
        for above in {bisect_left(REGISTRY[name].buckets, value) for value in values}:
            for bound in REGISTRY[name].buckets[max(0, above - 1) : above + 1]:
                assert (f"{name}_bucket", (*labels, str(bound))) in live, "it is interpolated there"
    assert published.series.end().keys() == live.keys()


@pytest.mark.parametrize("staged", [False, True])
def test_metrics_are_the_same_from_the_rosters_of_the_machine(staged):
    """Also where the process saw only what came after a checkpoint; and nobody changes them."""
    if staged:
        task, choice = cut_task(2, 1), ParadigmChoice(name="decoupled", modules=2, groups=1)
    else:
        task = timed(
            workers=[{"count": 3, "step_s": 1.0, "jitter": {"sigma": 0.5}}],
            workload={"samples": 640},
        )
        choice = ParadigmChoice(name="bsp")
    _, checkpoint = interrupted(task, choice, 24)
    rosters = rosters_in(checkpoint.state["topology"]["machine"])
    assert staged or rosters[0].buffered, "a push from before is applied behind the checkpoint"
    for begins_behind in (False, True):
        behind = checkpoint if begins_behind else None
        driver = driver_of(task, choice.make(), behind)
        shared, following = (Published(task.workload_samples, behind=behind) for _ in range(2))
        alone = Published(task.workload_samples, behind=behind).measures
        for lines in driver.run():
            rosters = rosters_by_stage(driver.topology)
            before = encode([roster.dump() for roster in rosters.values()])
            shared.measures.share(rosters)
            assert shared.take(lines).gauges == following.take(lines).gauges
            assert encode([roster.dump() for roster in rosters.values()]) == before
            for line in lines:
                for _, apply in decided([line], Apply) if not staged else ():
                    assert alone.samples == apply.samples_before
                alone.feed([line])
        assert shared.counters == following.counters
        assert shared.gauges == following.gauges
        assert shared.histograms == following.histograms
        assert shared.total("raysync_updates") > 0


def check_an_ended_run(published):
    assert published.now("raysync_workers_live") == {"its rule": 0}
    assert set(published.now("raysync_phase_active").values()) == {0}
    assert not published.now("raysync_worker_lead_clocks")


@settings(max_examples=40)
@given(
    plans(),
    st.one_of(st.sampled_from(list(VARIANTS)), st.sampled_from(list(SWITCHED))),
    st.integers(1, 150),
    st.lists(st.integers(0, 20)),
)
def test_the_sums_are_the_record(plan, paradigm, pushes, batches):
    """Of random clusters, faults and paradigms; at every moment the gauges are of that moment."""
    name, parameters = (VARIANTS | SWITCHED)[paradigm]
    choice = ParadigmChoice(name=name, **parameters)
    lines = run(timed(**plan, workload={"samples": pushes}), choice)
    published = Published(pushes, make(name, **parameters).phase)
    live, away, rest = set(), set(), list(lines)
    while rest:
        size = batches.pop() if batches else 1
        batch, rest = rest[:size], rest[size:]
        published.take(batch)
        for entry in entries(batch, object):
            if isinstance(entry.event, Joined):
                live.add(entry.event.worker)
            elif isinstance(entry.event, Left):
                live.discard(entry.event.worker)
            # suspended, and not released since
            away |= {each.worker for each in of(Suspend, entry.decisions)}
            away -= {each.worker for each in of(Release, entry.decisions)}
        if rest:
            assert published.now("raysync_workers_live") == {"its rule": len(live)}
            assert sum(published.now("raysync_phase_active").values()) == 1
            # Else its releases are not carried out.
            if published.now("raysync_progress_ratio") != {"its rule": 1}:
                assert len(published.now("raysync_worker_lead_clocks")) == len(live - away)
    check_against_the_record(published, lines, pushes)
    check_an_ended_run(published)
    check_the_series(published)
    assert set(published.by("raysync_drops")) <= set(DROP_REASONS)
    noted = Counter(note.kind for _, note in decided(lines, Note))
    assert published.total("raysync_stragglers_detected") == noted["straggler"]
    for what in (*published.by("raysync_drops"), *noted):
        event(what)


def test_decoupled_modules():
    """Progress and versions are the last module's; everything of a worker has the module in its
    name.
    """
    training = cut_task(2, 2, faults=[{"kind": "slow-down", "workers": ["gpu-1"], "factor": 3}])
    lines = decoupled(training, 2, 2)
    published = Published(training.workload_samples).take(lines[:40])
    assert published.now("raysync_workers_live") == {"its rule": 4}
    assert set(published.now("raysync_worker_lead_clocks")) == {
        "m1/gpu-0",
        "m2/gpu-1",
        "m1/gpu-2",
        "m2/gpu-3",
    }
    published.take(lines[40:])
    check_against_the_record(published, lines, training.workload_samples)
    check_an_ended_run(published)
    summary, _ = summed_up(lines, training.workload_samples)
    assert published.now("raysync_primary_metric") == {"max": summary["final_accuracy"]}
    assert published.now("raysync_evaluation_loss_nats") == {"its rule": summary["final_loss"]}


def test_what_lagtuner_decided_last():
    lines = journal("lagtuner", 40, s_lower=1, s_upper=4)
    published, latest = Published(10**6, "lagtuner"), {}
    names = {
        "extra": "raysync_lagtuner_extra_clocks",
        "predicted_wait_s": "raysync_lagtuner_predicted_wait_seconds",
        "actual_wait_s": "raysync_lagtuner_actual_wait_seconds",
    }
    # Of one wait.
    of_kind = {"controller": ["extra"], "waited": ["predicted_wait_s", "actual_wait_s"]}
    shown = set()
    for line in lines:
        for note in (decision for decision in line.decisions if isinstance(decision, Note)):
            latest.update({key: note.values[key] for key in of_kind[note.kind]})
        published.take([line])
        for key, name in names.items():
            value = latest.get(key)
            assert published.now(name) == ({} if value is None else {WorkerId(FAST).slot: value})
            shown.add((key, value))
    assert {key for key, value in shown if value} == set(names), "each has been more than nothing"
    assert published.now("raysync_loss_nats") == {"its rule": 1.0}
    published.take([Entry(Left(at=lines[-1].event.at, worker=FAST), ())])
    assert not any(published.now(name) for name in names.values()), "nobody is shown who is gone"


def test_a_wait_is_counted_while_it_lasts():
    """The fast worker pushes at 1 s, the slow one at 3 s; somebody joins at 2 s."""
    churn = [*joins(FAST, "slow-0#1"), Joined(at=2.0, worker="slow-1#1")]
    published, waits = Published(10**6), []
    for event_, decisions in simulate(
        Machine(make("bsp")), churn, lambda worker, _: 1.0 if worker == FAST else 3.0, 2
    ):
        published.take([Entry(event_, tuple(decisions))])
        waits.append((event_.at, published.total("raysync_wait_seconds")))
    assert waits == [(0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (2.0, 1.0), (3.0, 2.0)]
    assert published.total("raysync_pushes") == 0, "the round goes on: the newcomer is at work"
    published.take([Ended("stopped", 4.0)])
    assert published.total("raysync_wait_seconds") == 3 + 1
    assert (published.total("raysync_pushes"), published.total("raysync_drops")) == (2, 0), (
        "what was buffered is no drop"
    )


def test_a_series_begins_with_nothing():
    """Under ASP nobody waits, and that can be seen. What is divided by one another begins
    together.
    """
    published = Published(10**6, "asp").take(journal("asp", 8))
    assert published.by("raysync_wait_seconds") == {"fast-0": 0, "slow-0": 0}
    begun = Published(10**6, "asp").take(journal("asp", 8)[:1]).counters
    assert set(begun.values()) == {0}
    per_worker = ("busy_seconds", "wait_seconds", "transfer_seconds", "pushes")
    names = {f"raysync_{name}" for name in (*per_worker, "samples_applied", "updates")}
    assert {name for name, _ in begun} >= names


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"metric": "accuracy", "at_least": 0.5}, (None, 2.0, 2.0)),
        ({"metric": "loss", "at_most": 1.0}, (None, None, 3.0)),
        ({"metric": "rmse", "at_most": 1.0}, (None, None, None)),
    ],
)
def test_the_time_to_the_target(target, expected):
    """Once it is reached, counted from the first release; as in the summary."""
    published = Published(10**6, "asp", targets=(Target(**target),))
    evaluations = ((1.0, 0.2, 2.0), (2.0, 0.6, 1.5), (3.0, 0.3, 0.9))
    published.take(journal("asp", 8)[:1])
    for (at, accuracy, loss), seconds in zip(evaluations, expected, strict=True):
        metrics = {"accuracy": accuracy, "loss": loss}
        part = 0.1 * at
        published.take([Evaluation(mark=part, progress=part, version=1, at=at, metrics=metrics)])
        shown = {} if seconds is None else {"its rule": seconds}
        assert published.now("raysync_time_to_target_seconds") == shown


def test_nothing_new_is_the_gauges_once_more():
    published = Published(10**6, "asp").take(journal("asp", 8))
    before = dict(published.gauges), dict(published.counters)
    assert before == (published.take([]).gauges, published.counters)
    assert isinstance(journal("asp", 8)[-1].event, Pushed)
    check_an_ended_run(published.take([Ended("stopped", 99.0)]))
