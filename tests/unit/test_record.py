"""Measures against hand-computed numbers, and records that survive."""

import json
from datetime import datetime

import pandas as pd
import pytest

from raysync.config import Target
from raysync.core.events import Left, Pushed
from raysync.core.journal import Ended, Entry, Evaluation
from raysync.core.machine import Machine
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.record.measures import Measures
from raysync.record.reader import load
from raysync.record.writer import RecordWriter
from raysync.testing.drive import SAMPLES
from tests.builders.journals import FAST, SLOW, journal
from tests.builders.schedules import joins, simulate


def measured(lines, workload=10 * SAMPLES, target=None):
    goal = None if target is None else Target(metric="accuracy", at_least=target)
    measures = Measures(workload, goal)
    rows = [row for line in lines for row in measures.feed(line)]
    return measures, rows


def score(progress, accuracy, at):
    return Evaluation(
        mark=progress,
        progress=progress,
        version=1,
        at=at,
        metrics={"accuracy": accuracy, "loss": 1 - accuracy},
    )


def test_bsp_waits_by_hand():
    """The fast worker computes 1 s and waits 2 s of each 3 s round: a third of both
    workers' time.
    """
    lines = [*journal("bsp", 10), Ended("finished", 15.0)]
    measures, rows = measured(lines)
    assert measures.wait_fraction == pytest.approx(10 / 30)
    assert measures.throughput_samples_per_s == 10 * SAMPLES / 15
    assert measures.progress == 1
    assert measures.summary()["staleness_max"] == measures.summary()["lead_max"] == 0
    assert [(row.wait_s, row.busy_s) for row in rows if row.worker == FAST] == [(2.0, 1.0)] * 5
    assert {row.outcome for row in rows} == {"applied"}


def test_asp_staleness_by_hand():
    """Three fast pushes between the slow worker's pull and its update (at 3 s the slow one was
    scheduled first).
    """
    _, rows = measured(journal("asp", 8))
    slow = [row for row in rows if row.worker == SLOW]
    assert [row.staleness for row in slow] == [2, 3]
    assert all(row.staleness == 0 or row.staleness == 1 for row in rows if row.worker == FAST)
    assert [row.lead for row in rows if row.worker == FAST][:3] == [0, 1, 2]
    assert all(row.wait_s == 0 for row in rows)


def test_the_wait_of_who_is_held_at_the_end_counts_up_to_the_end():
    lines = [*journal("ssp", 3, slow_s=50.0, staleness=2), Ended("stopped", 10.0)]
    _, rows = measured(lines)
    assert [row.wait_s for row in rows] == [0.0, 0.0, 7.0]


def test_a_buffered_push_is_a_row_too():
    measures, rows = measured([*journal("bsp", 1), Ended("stopped", 2.0)])
    assert [(row.outcome, row.version, row.wait_s) for row in rows] == [("buffered", None, 1.0)]
    assert measures.summary()["pushes"] == 1
    assert (
        measures.summary()["dropped"]
        == sum(one["dropped"] for one in measures.summary()["per_worker"])
        == 0
    )
    assert measures.samples == 0


def test_a_late_push_is_a_dropped_row():
    machine = Machine(make("asp"))
    events = list(
        simulate(machine, joins(FAST, SLOW), lambda worker, _: 1.0 if worker == FAST else 3.0, 2)
    )
    lines = [Entry(event, tuple(decisions)) for event, decisions in events]
    for event in (
        Left(at=2.5, worker=SLOW),
        Pushed(at=3.0, worker=SLOW, clock=0, base=0, samples=SAMPLES, busy_s=3.0),
    ):
        lines.append(
            Entry(
                event,
                tuple(machine.handle(event)),
                {"loss": 2.0} if isinstance(event, Pushed) else {},
            )
        )
    measures, rows = measured(lines)
    late = rows[-1]
    assert (late.outcome, late.reason, late.why) == (
        "dropped",
        "left",
        "its worker had left before it arrived",
    )
    assert measures.summary()["dropped"] == 1
    each = {one["id"]: (one["pushes"], one["dropped"]) for one in measures.summary()["per_worker"]}
    assert each == {FAST: (2, 0), SLOW: (1, 1)}
    assert measures.workers[SLOW].left_at == 2.5


def test_a_run_that_was_killed_leaves_a_readable_record(written, tmp_path):
    """The same folder as a kill leaves it: no summary, parquet without its end, a line cut in the
    middle.
    """
    folder, _ = written
    whole = load(folder)
    # Read now: they are made when asked for.
    pushes, evaluations, summary = (whole.pushes, whole.evaluations, whole.summary)
    (folder / "summary.json").unlink()
    (folder / "evaluations.parquet").unlink()
    (folder / "pushes.parquet").write_bytes(b"PAR1")
    killed = load(folder)
    assert killed.summary | {"wall_seconds": 0} == summary | {"wall_seconds": 0}
    pd.testing.assert_frame_equal(killed.pushes, pushes)
    pd.testing.assert_frame_equal(killed.evaluations, evaluations)
    text = (folder / "journal.jsonl").read_text()
    (folder / "journal.jsonl").write_text(text[: text.rindex("\n", 0, -1) - 20])
    cut = load(folder)
    assert cut.summary["status"] == "unfinished"
    assert len(cut.pushes) == 30


def test_a_folder_without_a_record(tmp_path):
    with pytest.raises(ConfigError, match="not the record of a run"):
        load(tmp_path)


def test_the_journal_is_on_disk_with_every_batch(tmp_path):
    writer = RecordWriter(tmp_path, "", make("asp"), Measures(960), {}, datetime.now())
    lines = journal("asp", 5)
    writer.write(lines)
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1 + len(lines)
    assert (
        json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[0])["workload_samples"]
        == 960
    )
    writer.close()
