"""The Chrome trace: well-formed, and the same times as the record's."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

import raysync
from raysync.core.decisions import Apply, Drop, Hold, Note, Restore, Suspend, Switch
from raysync.core.events import Joined, Left, TimerFired
from raysync.core.journal import Ended, Entry, Evaluation, Remark, encode
from raysync.results.trace import AT_END, LEAD, SERVER, WORKERS, trace, write_trace
from tests.builders.reports import LABELS


def ns(us):
    return round(us * 1000)


@pytest.fixture(params=LABELS)
def record(request, runs):
    return next(run.record for run in runs.runs if run.paradigm == request.param)


@pytest.fixture
def events(record, tmp_path):
    """As a viewer reads them."""
    write_trace(record, tmp_path / "trace.json")
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def names(events):
    return {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in events
        if one["name"] == "thread_name"
    }


def of(events, phase, **values):
    return [
        one
        for one in events
        if one["ph"] == phase and all(one.get(name) == value for name, value in values.items())
    ]


def test_every_event_is_what_the_format_asks_for(events):
    tracks = names(events)
    assert {one["ph"] for one in events} == {"M", "X", "C", "i"}
    for one in events:
        assert one["pid"] in (WORKERS, SERVER, LEAD)
        if one["ph"] == "M":
            continue
        assert one["ts"] >= 0
        if one["ph"] == "C":
            assert all(isinstance(value, int) for value in one["args"].values())
            continue
        assert (one["pid"], one["tid"]) in tracks
        assert one["ph"] != "i" or one["s"] == "t"
        assert one["ph"] != "X" or one["dur"] > 0
    numbers = [*(track for _, track in tracks), WORKERS, SERVER, LEAD]
    assert len(set(numbers)) == len(numbers)
    assert [one["args"]["name"] for one in of(events, "M", name="process_name")][1:] == [
        "server",
        "lead, clocks",
    ]


def test_slices_of_a_worker_touch_and_never_overlap(events):
    lanes = defaultdict(list)
    for one in of(events, "X"):
        lanes[one["tid"]].append((ns(one["ts"]), ns(one["ts"]) + ns(one["dur"]), one["cat"]))
    assert len(lanes) == 4, "three workers, of which one came back"
    for slices in lanes.values():
        slices.sort()
        for (_, end, before), (begin, _, after) in pairwise(slices):
            assert end == begin, (before, after)
            assert (before, after) in {
                ("transfer", "step"),
                ("step", "transfer"),
                ("transfer", "transfer"),
                ("transfer", "wait"),
                ("step", "wait"),
                ("wait", "transfer"),
                ("step", "step"),
            }


def test_times_are_those_of_the_record(events, record):
    tracks = {name: track for (process, track), name in names(events).items() if process == WORKERS}
    pushes = record.pushes
    for worker, there in pushes.groupby("worker"):
        mine = [one for one in of(events, "X") if one["tid"] == tracks[worker]]
        total = {
            kind: sum(one["dur"] for one in mine if one["cat"] == kind) / 1e6
            for kind in ("step", "wait", "transfer")
        }
        assert total["step"] == pytest.approx(there.busy_s.sum(), abs=1e-6)
        assert total["wait"] == pytest.approx(there.wait_s.sum(), abs=1e-6)
        assert total["transfer"] == pytest.approx(
            (there.pushed_at_s - there.released_at_s - there.busy_s).sum(), abs=1e-6
        )
    leads = [(one["name"], ns(one["ts"]), one["args"]["clocks"]) for one in of(events, "C")]
    assert leads == [
        (f"lead {row.worker}", round(row.released_at_s * 1e9), row.lead)
        for row in pushes.itertuples()
    ]


def test_what_the_journal_says_is_marked(events, record):
    entries = [line for line in record.journal() if isinstance(line, Entry)]
    decisions = [decision for entry in entries for decision in entry.decisions]

    def count(kind):
        return sum(isinstance(one, kind) for one in decisions)

    assert len(of(events, "i", cat="update")) == count(Apply) == record.summary["updates"]
    assert len(of(events, "i", cat="note", pid=SERVER)) == count(Note)
    assert len(of(events, "i", cat="note", pid=WORKERS)) == count(Note)
    assert len(of(events, "i", cat="drop")) == count(Drop)
    assert (
        [one["name"] for one in of(events, "i", cat="member")]
        == [
            "joined" if isinstance(entry.event, Joined) else "left"
            for entry in entries
            if isinstance(entry.event, Joined | Left)
        ]
        == ["joined"] * 3 + ["left", "joined"]
    )
    assert len(of(events, "i", cat="evaluation")) == len(record.evaluations)
    assert [one["name"] for one in of(events, "i", cat="end")] == ["finished"]


def test_a_wait_says_why(events, record):
    waits = of(events, "X", cat="wait")
    why = {
        decision.why
        for line in record.journal()
        if isinstance(line, Entry)
        for decision in line.decisions
        if isinstance(decision, Hold)
    }
    ended = [one for one in waits if one["args"]["why"] == AT_END]
    assert len(ended) == 1, "who made the last update, until it is published"
    assert ns(ended[0]["ts"]) + ns(ended[0]["dur"]) == max(
        ns(one["ts"]) + ns(one["dur"]) for one in of(events, "X")
    )
    waits.remove(ended[0])
    assert {one["args"]["why"] for one in waits} <= why
    assert bool(waits) == (record.config.paradigm.name != "asp")


def test_lives_of_a_slot_lie_side_by_side(events):
    assert [name for (process, _), name in names(events).items() if process == WORKERS] == [
        "fast-0#1",
        "fast-1#1",
        "fast-1#2",
        "slow-0#1",
    ]


def test_switches_drops_and_remarks(own_record):
    """What the records at hand do not hold, put into a journal."""
    journal = own_record / "journal.jsonl"
    header = journal.read_text().splitlines()[0]
    lines = [
        Entry(Joined(at=0.0, worker=worker), ())
        for worker in ("fast-0#1", "fast-1#1", "fast-1#2", "slow-0#1")
    ]
    more = [
        Entry(
            TimerFired(at=1.0, key="k"),
            (
                Switch("asp", "it is time"),
                Drop(("fast-0#1", 3), "too stale", "stale"),
                Suspend("slow-0#1", "as a straggler"),
                Restore("slow-0#1"),
            ),
        ),
        Entry(
            TimerFired(at=1.5, key="k"),
            (Note("seen", "", {"wait": float("inf"), "all": [1, float("nan")]}),),
        ),
        Remark(2.0, "the sun shines"),
        Evaluation(1.0, 1.0, 1, 3.0, {"accuracy": float("nan"), "loss": float("nan")}),
        Ended("failed", 4.0, "it broke"),
    ]
    journal.write_text("\n".join([header, *map(encode, [*lines, *more])]) + "\n")
    found = [
        (one["name"], one["ts"], one["args"])
        for one in of(trace(raysync.load(own_record))["traceEvents"], "i")
    ][4:]
    write_trace(raysync.load(own_record), own_record / "trace.json")
    assert found == [
        ("switch to asp", 1e6, {"why": "it is time"}),
        ("dropped fast-0#1 3", 1e6, {"reason": "stale", "why": "too stale"}),
        ("suspended", 1e6, {"worker": "slow-0#1", "why": "as a straggler"}),
        ("suspended", 1e6, {"why": "as a straggler"}),
        ("restored", 1e6, {"worker": "slow-0#1"}),
        ("restored", 1e6, {}),
        ("seen", 1.5e6, {"worker": "", "wait": None, "all": [1, None]}),
        ("the sun shines", 2e6, {}),
        ("evaluation: accuracy nan%", 3e6, {"accuracy": None, "loss": None, "version": 1}),
        ("failed", 4e6, {"error": "it broke"}),
    ]
