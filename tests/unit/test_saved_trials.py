"""Trials that Tune pauses, resumes and clones, in this process and in virtual time: they go on
exactly where they stood, and every evaluation is reported once.
"""

import shutil
from pathlib import Path

import pytest
import yaml

from raysync.config import ParadigmChoice
from raysync.core.journal import Entry, Evaluation, Remark, Resumed
from raysync.core.replay import replay
from raysync.errors import ConfigError
from raysync.paradigms import rebuild
from raysync.record.reader import load
from raysync.tuning import sweep
from raysync.tuning.tune_library import checkpoints_kept, scheduler
from tests.fakes.tuner import FakeTune

SETTINGS = {
    "name": "tiny",
    "engine": "virtual",
    "model": "logistic-regression",
    "data": {"name": "digits", "train_samples": 160, "test_samples": 50},
    "batch_size": 8,
    "update": {"momentum": 0.5},
    "workload": {"samples": 320},
    "evaluation": {"marks": 5},
    "workers": [{"count": 3, "step_s": 0.1, "jitter": {"sigma": 0.3}}],
    "paradigm": ParadigmChoice(name="ssp", staleness=2).model_dump(),
    "sweep": {
        "grid": {"update.lr": [0.01, 0.1]},
        "scheduler": {
            "name": "pbt",
            "time_attr": "training_iteration",
            "perturbation_interval": 2,
            "hyperparam_mutations": {"update.lr": {"loguniform": [0.005, 0.11]}},
        },
    },
}
FIRST, SECOND = {"trial": 0, "update.lr": 0.01}, {"trial": 1, "update.lr": 0.1}


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Returns Tune's place and the trials of a new sweep."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(SETTINGS))

    def begin(*settings):
        plan = sweep.plan(Path("tiny.yaml"), settings)
        return FakeTune(monkeypatch, tmp_path / f"tune-{plan.trials.folder.name}"), plan.trials

    return begin


def records(trials, name):
    return [load(path) for path in sorted((trials.folder / "records" / name).glob("2*"))]


def told(record):
    return [line for line in record.journal() if isinstance(line, Entry | Evaluation)]


def decided(lines):
    return [(each.event, each.decisions) for each in lines if isinstance(each, Entry)]


def reported(tune, trial):
    """What a trial has reported of its evaluations; other measures are those of the moment."""
    return [
        [each[name] for name in ("progress", "seconds", "loss")] for each in tune.reports[trial]
    ]


def undisturbed(begin, point):
    tune, trials = begin()
    tune.run(trials, point)
    [record] = records(trials, "00000")
    return told(record), reported(tune, "00000")


def test_a_trial_that_is_paused_at_each_report_is_one_that_never_was(begin):
    expected, reports = undisturbed(begin, FIRST)
    tune, trials = begin("checkpoint={every_progress: 0.3, output: elsewhere}")
    checkpoint = None
    while len(tune.reports.get("00000", ())) < len(reports):
        tune.run(trials, FIRST, checkpoint, reports=1)
        checkpoint = tune.checkpoints["00000"][-1]
    [record] = records(trials, "00000")
    assert told(record) == expected
    assert reported(tune, "00000") == reports
    assert record.summary["status"] == "finished"
    assert sum(isinstance(line, Resumed) for line in record.journal()) == len(reports) - 1
    with (record.path / "journal.jsonl").open() as file:
        assert replay(file, rebuild).difference is None

    before = (record.path / "journal.jsonl").read_bytes()
    tune.run(trials, FIRST, checkpoint)  # there is nothing left to do
    assert (record.path / "journal.jsonl").read_bytes() == before
    assert reported(tune, "00000") == reports


def test_it_can_go_back_to_an_earlier_report(begin):
    expected, reports = undisturbed(begin, FIRST)
    tune, trials = begin()
    tune.run(trials, FIRST, reports=4)
    tune.run(trials, FIRST, tune.checkpoints["00000"][1])
    [record] = records(trials, "00000")
    assert told(record) == expected
    assert reported(tune, "00000") == [*reports[:4], *reports[2:]]


@pytest.mark.parametrize("lost", ["record", "journal", "checkpoints"])
def test_it_needs_nothing_but_what_tune_keeps(begin, lost):
    """Another node may not have its record, or have one that is not up to date."""
    expected, _ = undisturbed(begin, FIRST)
    tune, trials = begin()
    tune.run(trials, FIRST, reports=3)
    [record] = records(trials, "00000")
    if lost == "record":
        shutil.rmtree(record.path)
    elif lost == "journal":
        journal = record.path / "journal.jsonl"
        journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:4]))
    else:
        shutil.rmtree(record.path / "checkpoints")
    tune.run(trials, FIRST, tune.checkpoints["00000"][-1])
    [record] = records(trials, "00000")
    assert told(record) == expected


def test_a_clone_goes_on_as_the_other_trial_with_its_own_settings(begin):
    expected, _ = undisturbed(begin, SECOND | {"trial": 0})
    tune, trials = begin()
    tune.run(trials, SECOND, reports=3)
    tune.run(trials, FIRST, reports=3)
    donor = tune.checkpoints["00001"][-1]
    tune.run(trials, FIRST | {"update.lr": 0.02}, donor)
    before, clone = records(trials, "00000")
    assert before.summary["status"] == "stopped", "what it had done itself is kept"
    assert clone.config.update.lr == 0.02
    [remark] = [line.text for line in clone.journal() if isinstance(line, Remark)]
    assert "from checkpoint 3 of trial 00001" in remark
    assert remark.endswith("with update.lr: 0.02 in place of 0.1.")
    ours = told(clone)
    assert decided(ours) == decided(expected), "the learning rate changes no event"
    evaluations, others = (
        [each.loss for each in lines if isinstance(each, Evaluation)] for lines in (ours, expected)
    )
    assert evaluations[:3] == others[:3]
    assert all(mine != other for mine, other in zip(evaluations[3:], others[3:], strict=True))
    assert len(tune.reports["00000"]) == 3 + 3

    tune.run(trials, FIRST | {"update.lr": 0.1}, donor)  # unchanged, it is the other trial
    assert told(records(trials, "00000")[-1]) == expected


def test_what_changes_counts_from_the_clone_on(begin):
    """Without a momentum, the last updates of the clone are plain SGD."""
    tune, trials = begin()
    tune.run(trials, FIRST, reports=3)
    tune.run(trials, SECOND | {"update.momentum": 0.0}, tune.checkpoints["00000"][-1])
    with_state, _ = undisturbed(begin, FIRST)
    [clone] = records(trials, "00001")
    losses = [each.loss for each in told(clone) if isinstance(each, Evaluation)]
    assert losses[3:] != [each.loss for each in with_state if isinstance(each, Evaluation)][3:]


def test_a_clone_of_a_trial_that_is_over_trains_its_end(begin):
    tune, trials = begin()
    tune.run(trials, FIRST)
    tune.run(trials, SECOND, tune.checkpoints["00000"][-1])
    [clone] = records(trials, "00001")
    assert clone.summary["status"] == "finished"
    assert [each["progress"] for each in tune.reports["00001"]] == [0.8, 1.0]


def test_a_sweep_that_is_resumed_tells_a_new_tune_all(begin, tmp_path, monkeypatch):
    expected, reports = undisturbed(begin, FIRST)
    tune, trials = begin()
    tune.run(trials, FIRST, reports=4)
    plan = sweep.plan(None, resume=write(trials))
    again = FakeTune(monkeypatch, tmp_path / "again")
    again.run(plan.trials, FIRST)
    [record] = records(trials, "00000")
    assert told(record) == expected
    assert reported(again, "00000") == reports


def write(trials):
    """Write what a sweep writes beside its trials; return its folder."""
    plan = sweep.plan(Path("tiny.yaml"))
    (trials.folder / sweep.FILE).write_text(plan.experiment.to_yaml())
    sweep.Origin(trials.source, trials.text, trials.overrides).write(trials.folder)
    return trials.folder


def test_settings_stay_within_their_distribution_and_tune_keeps_enough_checkpoints(begin):
    plan = sweep.plan(Path("tiny.yaml")) if begin() else None
    assert checkpoints_kept(plan.sweep) == 5
    explore = scheduler(plan.sweep, "file")._custom_explore_fn
    assert explore({"trial": 1, "update.lr": 0.12}) == {"trial": 1, "update.lr": 0.11}
    assert explore({"trial": 1, "update.lr": 0.05}) == {"trial": 1, "update.lr": 0.05}


def test_a_run_without_evaluations_cannot_be_paused(begin):
    with pytest.raises(ConfigError, match="pbt pauses trials at their evaluations.*timing: only"):
        begin("timing=only")
