"""Measures against hand-computed numbers, and records that survive."""

import json
from dataclasses import replace
from datetime import datetime

import numpy as np
import pandas as pd
import pytest

from raysync import config
from raysync.config import Target
from raysync.core.decisions import Restore, Suspend, Switch
from raysync.core.events import Left, Pushed
from raysync.core.journal import Ended, Entry, Evaluation, decode, encode
from raysync.core.machine import Machine
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.record.measures import Measures, converged
from raysync.record.push_rows import columns_of
from raysync.record.reader import load
from raysync.record.writer import RecordWriter, folder_name
from raysync.running.run import run
from raysync.testing.drive import SAMPLES
from raysync.training.data.data_set import data_set
from raysync.training.models.initial_model import InitialModel
from raysync.training.preparation import prepare
from raysync.training.tasks.supervised import LanguageModel
from tests.builders.journals import FAST, SLOW, journal
from tests.builders.messages import Telling, naming
from tests.builders.schedules import joins, simulate


def measured(lines, workload=10 * SAMPLES, target=None):
    goal = None if target is None else Target(metric="accuracy", at_least=target)
    measures = Measures(workload, goal)
    rows = measures.feed(lines)
    return measures, rows


def score(progress, accuracy, at):
    return Evaluation(progress, progress, 1, at, {"accuracy": accuracy, "loss": 1 - accuracy})


def step_s(worker, clock):
    return 1.0 if worker == FAST else 3.0


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


def test_a_late_push_is_a_dropped_row_and_one_that_waits_a_buffered_one():
    machine = Machine(make("asp"))
    lines = [
        Entry(event, tuple(decisions))
        for event, decisions in simulate(machine, joins(FAST, SLOW), step_s, 2)
    ]
    push = Pushed(at=3.0, worker=SLOW, clock=0, base=0, samples=SAMPLES, busy_s=3.0)
    for event in (Left(at=2.5, worker=SLOW), push):
        lines.append(Entry(event, tuple(machine.handle(event))))
    measures, rows = measured(lines)
    assert (rows[-1].outcome, rows[-1].reason) == ("dropped", "left")
    assert measures.summary()["dropped"] == 1
    each = {one["id"]: (one["pushes"], one["dropped"]) for one in measures.summary()["per_worker"]}
    assert each == {FAST: (2, 0), SLOW: (1, 1)}
    _, rows = measured([*journal("bsp", 1), Ended("stopped", 2.0)])
    assert [(row.outcome, row.version, row.wait_s) for row in rows] == [("buffered", None, 1.0)]
    assert measures.workers[SLOW].left_at == 2.5


FORTY = [*journal("ssp", 40), Ended("finished", 15.0)]


@pytest.mark.parametrize("looks_every", [7, 1000])
def test_totals_are_the_same_from_columns_that_others_made(looks_every):
    """Whether or not some of their rows are counted already, since somebody has looked."""
    workload = 100 * SAMPLES
    expected, measures, rows = measured(FORTY, workload)[0].summary(), Measures(workload), []
    for number, line in enumerate(FORTY, start=1):
        rows += measures.feed((line,))
        if number % looks_every == 0:
            assert measures.workers
        if len(rows) >= 5:
            measures.count(columns_of(rows))
            rows = []
    assert measures.summary() == expected


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_totals_are_the_same_however_many_rows_are_added_at_once(monkeypatch, at_once):
    """To the last bit: sums are made in the order of the rows, also where they are looked at."""
    workload = 100 * SAMPLES
    expected, looked_at = measured(FORTY, workload)[0].summary(), Measures(workload)
    monkeypatch.setattr("raysync.record.follower.COUNTED_AT_ONCE", at_once)
    for number, line in enumerate(FORTY):
        looked_at.feed([line])
        if number % 7 == 0:
            pushes = [worker.pushes for worker in looked_at.workers.values()]
            assert sum(looked_at.outcomes.values()) == sum(pushes)
    assert looked_at.summary() == expected


def test_the_roster_of_a_machine_gives_the_measures_of_one_that_follows():
    """Also of the decisions behind the update that ends the run, which nobody carries out."""
    machine, workload = Machine(make("ssp", staleness=1), 30 * SAMPLES), 30 * SAMPLES
    shared, following = Measures(workload), Measures(workload)
    shared.share({0: machine.roster})
    for event, decisions in simulate(machine, joins(FAST, SLOW), step_s, 30):
        line = Entry(event, tuple(decisions))
        assert shared.feed([line]) == following.feed([decode(encode(line))])
        assert shared.leads == following.leads
        assert shared.clocks == following.clocks
    ended = Ended("finished", 99.0)
    assert shared.feed([ended]) == following.feed([ended])
    assert shared.summary() == following.summary()
    assert shared.samples == workload


def test_a_suspended_worker_is_not_what_leads_are_measured_from():
    """Under `elastic` the others make 40 rounds of BSP while one is suspended: nobody is ahead."""
    rule = make("sync-switch", online="elastic", window=1, windows=1)
    machine, measures = Machine(rule, 100 * SAMPLES), Measures(100 * SAMPLES)
    joined = joins(FAST, "fast-1#1", "fast-2#1", SLOW)
    moved, ahead, lead_max = [], 0, 0
    for event, decisions in simulate(
        machine, joined, lambda worker, _: 1 + 8 * (worker == SLOW), 80
    ):
        measures.feed([Entry(event, tuple(decisions))])
        moved += [type(each) for each in decisions if isinstance(each, Suspend | Restore | Switch)]
        if Switch not in moved:
            live = machine.roster.live
            ahead = max(ahead, live[FAST].clock - live[SLOW].clock) if len(live) == 4 else 0
            lead_max = measures.lead_max
    assert moved == [Suspend, Restore, Switch]
    assert ahead > 10
    assert lead_max == 0
    assert SLOW in measures.leads, "it takes part again"
    assert measures.lead_max < 20


@pytest.mark.parametrize(
    ("phases", "first_push_s"),
    [
        ({"first": "bsp", "then": "asp"}, 1.0),  # both begin at the switch
        # The slow one's step under way, of 3 s, does not count.
        ({"first": "asp", "then": "bsp"}, 1.0),
    ],
)
def test_a_switch_is_followed_by_the_first_push_of_a_step_begun_after_it(phases, first_push_s):
    lines = journal("sync-switch", 11, workload=12 * SAMPLES, **phases)
    switches = measured(lines, workload=12 * SAMPLES)[0].summary()["switches"]
    assert [switch["first_push_s"] for switch in switches] == [first_push_s]
    assert switches[0]["why"]


def test_a_switch_that_nothing_follows():
    lines = journal("sync-switch", 6, workload=12 * SAMPLES, first="bsp", fraction=0.5)
    assert measured(lines, workload=12 * SAMPLES)[0].summary()["switches"] == [
        {"at_s": 9.0, "to": "asp", "why": Telling("bsp 50"), "first_push_s": None}
    ]
    assert measured(journal("bsp", 6))[0].summary()["switches"] == []


def test_the_time_to_the_target_is_the_first_evaluation_at_or_above_the_target():
    scores = (0.2, 0.5, 2.0), (0.4, 0.9, 3.5), (0.6, 0.8, 5.0), (1.0, 0.95, 9.0)
    lines = [*journal("asp", 8), *(score(*each) for each in scores)]
    measures, _ = measured(lines, target=0.9)
    assert measures.time_to_target_s == 3.5
    assert measures.summary()["best_accuracy"] == measures.summary()["final_accuracy"] == 0.95
    assert measured(lines, target=0.99)[0].time_to_target_s is None
    assert measured(lines)[0].time_to_target_s is None


def test_converged_accuracy():
    """No change above 0.1 % over five evaluations (Sync-Switch)."""
    assert converged([0.1, 0.5, 0.9, 0.9, 0.9, 0.9009]) is None
    assert converged([0.1, 0.9, 0.9002, 0.9, 0.9, 0.9009, 0.95]) == 0.9009
    assert converged([0.9] * 4) is None
    assert converged([0.9] * 5) == 0.9


def test_a_model_that_never_learned_has_not_converged():
    """What does not change because nothing is learned is the guess."""
    assert converged([0.1] * 9, chance=0.1) is None
    assert converged([0.1] * 9) == 0.1, "what chance is, is not known"
    assert converged([0.1] * 5 + [0.9] * 5, chance=0.1) == 0.9, "it began to learn after all"
    assert converged([0.1, 0.1005, 0.1005, 0.1005, 0.1005], chance=0.1) is None


def test_chance_is_the_share_of_the_most_frequent_label():
    labels = np.array([0, 0, 0, 1, 2, 2, 1, 2, 2, 2])  # of the first four 3/4, of all of them 1/2
    x = np.zeros((10, 4), np.float32)
    data = data_set("ten", (x, labels), (x, labels))
    settings = {"engine": "virtual", "workers": [{"count": 2}], "batch_size": 2}
    for more, chance in (
        ({"timing": "only"}, None),
        ({"evaluation": {"samples": 4}}, 0.75),
        ({}, 0.5),
    ):
        prepared = prepare(config.validate(settings | more), data=data)
        assert prepared.chance_accuracy == chance
    words = data_set("words", *[(labels[None], labels[None])] * 2, tokens=True)
    of_words = replace(prepared, model=InitialModel(LanguageModel(None, words)))
    assert of_words.chance_accuracy == 0.5


def test_a_run_that_never_learns_has_no_converged_accuracy_in_record_and_journal(tmp_path):
    """Labels that are all but one the same: whatever is learned, the guess is as good."""
    x, y = np.ones((64, 4), np.float32), np.array([0] * 63 + [1])
    settings = {
        "engine": "virtual",
        "workers": [{"count": 2}],
        "batch_size": 8,
        "workload": {"samples": 512},
        "model": {"name": "mlp", "hidden": []},
        "evaluation": {"marks": 8},
        "output": str(tmp_path),
    }
    record = run(settings, data=data_set("one", (x, y), (x, y)))
    assert set(record.evaluations.accuracy) == {63 / 64}
    assert record.summary["converged_accuracy"] is None
    assert record.summary["chance_accuracy"] == 63 / 64
    (record.path / "summary.json").unlink()
    assert load(record.path).summary["converged_accuracy"] is None
    journal_file = record.path / "journal.jsonl"
    journal_file.write_text(journal_file.read_text().replace('"chance_accuracy"', '"of_later"', 1))
    older = load(record.path)
    assert older.summary["converged_accuracy"] == 63 / 64, "it does not know chance"


def test_measures_of_nothing():
    summary = Measures(10).summary()
    assert summary["status"] == "unfinished"
    assert summary["wait_fraction"] == summary["throughput_samples_per_s"] == 0
    assert summary["final_accuracy"] is summary["staleness_mean"] is None


@pytest.fixture
def written(tmp_path):
    experiment = config.validate({"paradigm": "ssp"})
    folder = folder_name(tmp_path, "test", "lagtuner(bound=hard, s_upper=9)")
    folder.mkdir(parents=True)
    lines = [*journal("ssp", 30), score(1.0, 0.75, 9.0), Ended("finished", 40.0)]
    target = Target(metric="loss", at_most=0.3)
    about = {"seed": 0, "metric": "accuracy", "metric_mode": "max", "target": target.plain()}
    measures = Measures(960, target)
    text, began = experiment.to_yaml(), datetime.now()
    with RecordWriter(folder, text, make("ssp"), measures, about, began) as writer:
        writer.write(lines)
    return folder, lines


def test_a_record_reads_as_frames(written):
    folder, lines = written
    record = load(folder)
    assert folder.name.split("-", 2)[2].startswith("lagtuner-bound=hard-s-upper=9-")
    assert record.config.paradigm.name == "ssp"
    assert list(record.journal()) == lines
    assert record.summary["status"] == "finished"
    assert record.summary["seed"] == 0
    assert record.summary["time_to_target_s"] == 9.0
    assert record.summary["wall_seconds"] >= 0
    assert len(record.pushes) == record.summary["pushes"] == 30
    assert record.pushes.samples.sum() == record.summary["samples"]
    assert record.evaluations.accuracy.tolist() == [0.75]
    assert sum(one["pushes"] for one in record.summary["per_worker"]) == 30
    assert record.environment["packages"]["torch"]


def test_a_run_that_was_killed_leaves_a_readable_record(written):
    """The same folder as a kill leaves it: no summary, parquet without its end, a line cut in the
    middle.
    """
    folder, _ = written
    whole = load(folder)
    # read now: they are made when asked for
    pushes, evaluations, summary = whole.pushes, whole.evaluations, whole.summary
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
    with pytest.raises(ConfigError, match=naming("record")):
        load(tmp_path)


def test_the_journal_is_on_disk_with_every_batch(tmp_path):
    writer = RecordWriter(tmp_path, "", make("asp"), Measures(960), {}, datetime.now())
    lines = journal("asp", 5)
    writer.write(lines)
    first, *others = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert len(others) == len(lines)
    assert json.loads(first)["workload_samples"] == 960
    writer.close()
