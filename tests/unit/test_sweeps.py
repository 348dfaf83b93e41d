"""What is noted of a sweep's trials, and the table that is made of it."""

import pandas as pd
import pytest
from ray import cloudpickle, tune

import raysync
from raysync.errors import ConfigError
from raysync.record.run_end import RunEnd
from raysync.record.sweeps import (
    FILE,
    RECORDS,
    TrialNote,
    ended_in_sweep,
    load_sweep,
    notes,
    trial_name,
    write_note,
    write_table,
)
from raysync.tuning.progress import TimeBudget, TuneCallback
from tests.builders.messages import naming
from tests.fakes.tuner import FakeTrial

TIMING = {
    "engine": "virtual",
    "timing": "only",
    "workload": {"samples": 320},
    "workers": [{"count": 2, "step_s": 0.1}],
}


def trial(number, error=None, **config):
    return FakeTrial({"trial": number, **config}, f"abc_{number:05d}", error)


def test_a_trial_has_ended_when_tune_says_so_and_not_before(tmp_path):
    said, error = [], tmp_path / "error.pkl"
    error.write_bytes(cloudpickle.dumps(ConfigError("does not\nfit")))
    callback = TuneCallback(tmp_path, said.append, show=print)
    for number in range(3):
        callback.on_trial_start(0, [], trial(number, seed=number))
    assert [note.ended for note in notes(tmp_path)] == [False] * 3
    callback.on_trial_complete(0, [], trial(0, seed=0))
    callback.on_trial_error(0, [], trial(1, error, seed=1))
    assert notes(tmp_path) == [
        TrialNote("00000", {"seed": 0}, True),
        TrialNote("00001", {"seed": 1}, True, "does not fit"),
        TrialNote("00002", {"seed": 2}, False),
    ]
    assert said == ["The trial with seed=1 failed: does not fit"]
    assert callback.done == 2
    # Tune pickles it with the experiment; only the process of the sweep notes and shows
    assert type(cloudpickle.loads(cloudpickle.dumps(callback))) is tune.Callback


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FILE).write_text("name: mine", encoding="utf-8")
    for number, (x, error) in enumerate([(0.5, ""), ("{a: 1}", "broke"), (2, "")]):
        varied = {"seed": number + 1, "x": x}
        write_note(tmp_path, TrialNote(trial_name(number), varied, ended=number < 2, error=error))
    first = {**TIMING, "output": str(tmp_path / RECORDS), "name": trial_name(0)}
    for seed, day in ((8, "20260102"), (7, "20260101")):  # the trial began twice
        record = raysync.run({**first, "seed": seed})
        record.path.rename(record.path.with_name(f"{day}-120000-bsp-0000"))
    return tmp_path


def test_the_table_has_a_row_a_trial_whatever_became_of_it(folder):
    write_table(folder)
    sweep = load_sweep(folder)
    ends = sweep.table[["status", "end", "ended_by", "error"]]
    assert ends.to_numpy().tolist() == [
        ["finished", "done", "", ""],
        ["failed", "broken", "error", "broke"],
        ["unfinished", "broken", "killed", ""],
    ]
    assert sweep.varied == ["seed", "x"]
    assert list(sweep.table["config/x"]) == ["0.5", "{a: 1}", "2"], "one type a column"
    assert sweep.table.pushes.dtype == "Int64", "a gap makes no floats"
    assert sweep.table.record.notna().tolist() == [True, False, False]
    assert sweep.records.keys() == {0}
    assert sweep.records[0].summary["seed"] == sweep.table.seed[0] == 8, "the newest counts"
    assert pd.read_csv(folder / "sweep.csv").seconds[0] == pytest.approx(sweep.table.seconds[0])


def test_a_folder_that_is_no_sweep_or_not_one_yet(tmp_path):
    with pytest.raises(ConfigError, match=naming("sweep")):
        load_sweep(tmp_path)
    (tmp_path / FILE).write_text("name: mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=naming("begun")):
        load_sweep(tmp_path)


def test_the_note_says_what_of_the_sweep_ended_a_trial(tmp_path):
    budget = TimeBudget(1e-9)
    callback = TuneCallback(tmp_path, print, show=print, has_scheduler=True, budget=budget)
    for number in range(2):
        callback.on_trial_start(0, [], trial(number, seed=number))
    callback.on_trial_complete(0, [], trial(0, seed=0))
    assert not budget.stop_all(), "its time begins now"
    assert budget.stop_all()
    assert [(note.by, note.ended) for note in notes(tmp_path)] == [
        ("sweep.scheduler", True),
        ("sweep.time_budget_s", False),
    ]
    assert callback.budget_is_over


BUDGET, SCHEDULER, AT_TARGET = "sweep.time_budget_s", "sweep.scheduler", "stop.at_target"


@pytest.mark.parametrize(
    ("note", "of_record", "expected"),
    [
        ({}, ("broken", "killed"), ("broken", "killed")),
        ({"by": BUDGET}, ("broken", "killed"), ("cut", BUDGET)),
        ({"by": SCHEDULER}, ("cut", "signal"), ("cut", SCHEDULER)),
        ({"by": SCHEDULER}, ("done", ""), ("done", "")),
        ({"by": SCHEDULER}, ("reached", AT_TARGET), ("reached", AT_TARGET)),
        ({"error": "it died"}, ("broken", "killed"), ("broken", "error")),
    ],
)
def test_record_and_sweep_know_the_end_together(note, of_record, expected):
    found = ended_in_sweep(RunEnd(*of_record, 1.0, 0.2), TrialNote("00000", {}, **note))
    assert found == RunEnd(*expected, 1.0, 0.2)


def test_a_notice_of_a_tracker_is_said_once(tmp_path):
    said = []
    callback = TuneCallback(tmp_path, said.append, show=print)
    for number in range(3):
        callback.on_trial_result(0, [], trial(number), {"loss": 1.0, "notice": "wandb is away"})
    callback.on_trial_result(0, [], trial(0), {"loss": 1.0})
    assert [text.partition(": ")[2] for text in said] == ["wandb is away"]
