"""What is found in the folders that a person names, and what is said of those that cannot
be read.
"""

import shutil

import pytest

from raysync.core.metrics import ACCURACY, PERPLEXITY, PrimaryMetric
from raysync.errors import ConfigError
from raysync.record.sweeps import TrialNote, write_note, write_table
from raysync.results.collection import OF_RESULTS, CollectedRun, collect
from raysync.results.grouping import differences, setting_text
from raysync.results.sentences import cautions
from tests.builders.messages import tells
from tests.builders.reports import (
    BASE,
    DIVERGED,
    LABELS,
    LEARNING_RATES,
    LOST,
    SEEDS,
    StandIn,
    edit,
    kill,
)

SCENARIOS = ("update.lr=0.05", "update.lr=0.2")


def test_a_sweep_by_scenario_paradigm_and_seed(sweep):
    groups = sweep.scenarios
    assert tuple(groups) == SCENARIOS
    for scenario, lr in zip(SCENARIOS, LEARNING_RATES, strict=True):
        assert tuple(groups[scenario]) == sweep.paradigms == LABELS
        for label, runs in groups[scenario].items():
            assert [run.seed for run in runs][:3] == list(SEEDS)
            assert {run.paradigm for run in runs} == {label}
            assert {run.record.config.update.lr for run in runs[:3]} == {lr}
    assert len(sweep.runs) == 19
    assert sweep.name == "tiny"
    assert sweep.criteria(SCENARIOS[0]).time_key == "time_to_target_s"


def test_a_diverged_trial_is_a_run_and_a_lost_one_is_listed(sweep):
    diverged = sweep.runs[DIVERGED]
    assert diverged.status == "diverged"
    assert all(diverged.value(key) is None for key in OF_RESULTS)
    assert diverged.value("throughput_samples_per_s") > 0
    [lost] = sweep.failed
    assert (lost.trial, lost.scenario, lost.paradigm, lost.seed) == (LOST, SCENARIOS[1], "asp", 4)
    assert lost.error == "no place for it"
    assert tells(lost.label, "update.lr=0.2 asp 4")
    assert sweep.failures(SCENARIOS[1], "asp") == [lost]
    assert sweep.failures(SCENARIOS[0], "asp") == []


def test_a_folder_of_records(runs):
    [groups] = runs.scenarios.values()
    assert {label: [run.seed for run in runs] for label, runs in groups.items()} == {
        label: [0, 1] for label in LABELS
    }
    assert tuple(groups) == LABELS, "in the order of the file's `paradigms`"
    assert runs.runs[0].scenario == ""
    assert runs.runs[0].record.summary["tokens"] is False
    assert len(collect([runs.runs[0].record.path]).runs) == 1


def test_runs_and_a_sweep_together_differ_in_words(runs_folder, sweep_folder):
    collection = collect([runs_folder, sweep_folder])
    assert [run.scenario for run in collection.runs if run.status == "finished"] == [
        *["update.lr=0.05, update.momentum=0, faults=crash"] * 6,
        *["update.lr=0.05, update.momentum=0, faults=none"] * 9,
        *["update.lr=0.2, update.momentum=0, faults=none"] * 9,
    ]


@pytest.fixture
def again(own_copy, own_record):
    """A later record of the same run, beside it."""
    return shutil.copytree(own_record, own_copy / f"99999999-{own_record.name}")


def test_the_newest_of_a_seed_counts(own_copy, own_record, again):
    collection = collect([own_copy])
    assert collection.superseded == 1
    paths = [run.record.path for run in collection.runs]
    assert len(paths) == 6
    assert again in paths
    assert own_record not in paths
    kill(again)
    paths = [run.record.path for run in collect([own_copy]).runs]
    assert own_record in paths, "it did its work, and the newer one did not"
    assert again not in paths


def coded(folder, task="1" * 64, paradigm=None):
    code = {"sha256": "a" * 64, "task_sha256": task, "paradigm_sha256": paradigm, "files": []}
    edit(folder / "environment.json", user_code=code)


def test_other_code_of_the_task_is_another_scenario(own_copy, again):
    for folder in own_copy.iterdir():
        coded(folder, task=("1" if folder != again else "2") * 64)
    collection = collect([own_copy])
    assert collection.superseded == 0
    sizes = sorted(sum(map(len, runs.values())) for runs in collection.scenarios.values())
    assert sizes == [1, 6]
    [text] = cautions(collection)
    assert "11111111" in text
    assert "22222222" in text


def test_other_code_of_a_paradigm_is_another_arm(own_copy):
    for number, folder in enumerate(sorted(own_copy.iterdir())):
        coded(folder, paradigm=str(number) * 64 if "-bsp-" in folder.name else None)
    [groups] = collect([own_copy]).scenarios.values()
    assert sorted(map(len, groups.values())) == [1, 1, 2, 2]
    assert cautions(collect([own_copy]))


def test_the_same_code_and_other_files_of_a_paradigm_are_compared(own_copy):
    """Only one paradigm is the user's: it is compared with those that come with raysync."""
    for folder in own_copy.iterdir():
        coded(folder, paradigm="3" * 64 if "-bsp-" in folder.name else None)
    collection = collect([own_copy])
    [groups] = collection.scenarios.values()
    assert tuple(groups) == LABELS
    assert cautions(collection) == []


def test_a_metric_of_the_batch_is_not_compared_between_sizes(own_copy, own_record):
    for folder in own_copy.iterdir():
        edit(folder / "summary.json", batch_metrics=["recall"])
    assert cautions(collect([own_copy])) == []
    edit(own_record / "config.yaml", lambda settings: settings["evaluation"].update(batch_size=7))
    [text] = cautions(collect([own_copy]))
    assert "recall" in text
    assert "7" in text


LOSS = {"metric": "loss", "at_most": 0.5}


def texts(*settings, profiles=()):
    names = profiles or [None] * len(settings)
    return differences(
        [
            StandIn({"engine": "virtual"} | one, {"profile": profile}, None)
            for one, profile in zip(settings, names, strict=True)
        ]
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (({}, {"seed": 3, "paradigm": "asp", "name": "other", "output": "elsewhere"}), ["", ""]),
        (({}, {"data": {"data_dir": "elsewhere"}}), ["", ""]),
        (({"model": "mlp"}, {"model": "lenet"}), ["model=mlp", "model=lenet"]),
        (
            ({"batch_size": 8}, {"batch_size": 16, "update": {"lr": 0.5}}),
            ["update.lr=0.05, batch_size=8", "update.lr=0.5, batch_size=16"],
        ),
        (
            ({"workers": [{"count": 2}]}, {"workers": [{"count": 3}]}),
            ["workers=2 worker", "workers=3 worker"],
        ),
        (
            ({"workers": [{"speed": 1}]}, {"workers": [{"speed": 0.5}]}),
            ["workers=1 worker, workers.0.speed=1", "workers=1 worker, workers.0.speed=0.5"],
        ),
        (
            ({}, {"faults": [{"kind": "drift", "added_s": 1, "period_s": 2}]}),
            ["faults=none", "faults=drift"],
        ),
        (
            ({"target": {"metric": "f1", "at_least": 0.5}}, {}),
            ["target=f1 at least 0.5", "target=none"],
        ),
    ],
)
def test_what_sets_records_apart(settings, said):
    assert texts(*settings) == said


def test_a_profile_stands_for_what_it_brings():
    settings = [{"profile": name} for name in ("8-k80", "16-k80", "8-k80")]
    assert texts(*settings, profiles=["8-k80", "16-k80", "8-k80"]) == [
        "profile=8-k80",
        "profile=16-k80",
        "profile=8-k80",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{name: mlp, hidden: [64]}", "mlp(hidden=[64])"),
        ({"name": "ssp", "staleness": 3}, "ssp(staleness=3)"),
        (3.0, "3"),
        (0.1, "0.1"),
        (None, "none"),
        (float("nan"), "none"),
        ("lenet", "lenet"),
        ("{broken", "{broken"),
    ],
)
def test_values_in_words(value, text):
    assert setting_text(value) == text


@pytest.mark.parametrize(
    ("settings", "summary", "said"),
    [
        ({}, {}, (ACCURACY, 0.9, "time_to_target_s")),
        ({"target": None}, {}, (ACCURACY, None, "seconds")),
        ({"target": LOSS}, {}, (ACCURACY, 0.5, "time_to_target_s")),
        ({"target": LOSS}, {"tokens": True}, (PERPLEXITY, 0.5, "time_to_target_s")),
        (
            {"target": None},
            {"metric": "rmse", "metric_mode": "min"},
            (PrimaryMetric("rmse", "min"), None, "seconds"),
        ),
        ({"timing": "only"}, {}, (None, None, "seconds")),
    ],
)
def test_by_what_runs_are_judged(made, settings, summary, said):
    criteria = made({"bsp": [summary]}, **settings).criteria("")
    target = criteria.target and criteria.target.value
    assert (criteria.metric, target, criteria.time_key) == said


def test_a_number_that_is_none():
    run = CollectedRun(
        StandIn(BASE, {"a": None, "b": float("nan"), "c": float("inf"), "d": 2, "e": "text"}, None),
        "bsp",
        0,
    )
    assert [run.value(key) for key in "abcdef"] == [None, None, None, 2.0, None, None]


def fails(*paths):
    with pytest.raises(ConfigError) as raised:
        collect(list(paths))
    text = str(raised.value)
    assert len(text.splitlines()) <= 2
    assert str(paths[0]) in text
    return text


def test_nothing_to_report_on(tmp_path, runs_folder):
    assert "no such folder" in fails(tmp_path / "nowhere")
    assert tells(fails(tmp_path), "report")
    assert f"name one of: {runs_folder}" in fails(runs_folder.parent)
    (tmp_path / "sweep.yaml").write_text("sweep: {grid: {seed: [0]}}")
    assert tells(fails(tmp_path), "sweep")


def test_a_sweep_of_which_nothing_is_left(sweep_folder, tmp_path):
    shutil.copy(sweep_folder / "sweep.yaml", tmp_path)
    write_note(
        tmp_path,
        TrialNote("00000", {"seed": 0, "paradigm.nonsense": 3}, error="too large\nfor here"),
    )
    write_table(tmp_path)
    assert tells(fails(tmp_path), "1 trials")
    (tmp_path / "sweep.parquet").write_bytes(b"PAR1")
    assert tells(fails(tmp_path), "table")
    (tmp_path / "sweep.yaml").write_text("hyperdrive: 9")
    assert tells(fails(tmp_path), "experiment")


def test_a_run_that_was_killed_is_unfinished(own_copy, own_record):
    kill(own_record, 0.5)
    [killed] = [run for run in collect([own_copy]).runs if run.record.path == own_record]
    assert killed.status == "unfinished"
    assert killed.value("final_accuracy") is None
    assert killed.value("updates") > 0


def test_other_files_beside_the_records_are_passed_over(own_copy):
    (own_copy / "report").mkdir()
    (own_copy / "report.html").write_text("")
    assert len(collect([own_copy]).runs) == 6
