"""Rows of a comparison with settings of their own (`set`), and what rows with local steps are
called.
"""

import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from raysync import config, load, resume, run
from raysync.cli import app
from raysync.config import common_of, row_of
from raysync.errors import ConfigError
from raysync.record.storage import listdir
from raysync.results.collection import collect
from raysync.tuning.sweep_run import plan
from tests.builders.files import edit, write
from tests.builders.messages import naming

ADAMW = {"optimizer": "adamw", "lr": 0.002}
OUTER = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
SYNCHRONOUS = {"name": "bsp", "set": {"local": None, "update": ADAMW}}
DILOCO = {"name": "local", "steps": 4}
PLAIN = {
    "name": "rows",
    "engine": "virtual",
    "data": {"name": "digits", "train_samples": 128},
    "batch_size": 16,
    "workload": {"epochs": 1},
    "workers": [{"count": 2, "step_s": 0.1}],
}
LOCAL = PLAIN | {"local": {"steps": 1, **ADAMW}, "update": OUTER}
ROWS = {"paradigms": [SYNCHRONOUS, "bsp", DILOCO]}
LABELS = (
    "bsp(set={local: null, update: {lr: 0.002, optimizer: adamw}})",
    "local(bsp, steps=1)",
    "local(steps=4)",
)


def labelled(paradigm, **settings):
    experiment = config.validate({**PLAIN, "paradigm": paradigm, **settings})
    return row_of(experiment, experiment.paradigm).label


def same(left, right):
    tables = ("evaluations", "pushes")
    return all(getattr(left, table).equals(getattr(right, table)) for table in tables) and all(
        left.state_dict()[name].equal(value) for name, value in right.state_dict().items()
    )


def records(folder):
    """The records of a comparison, by label and seed."""
    found = [load(folder / name) for name in listdir(folder)]
    return {(one.summary["paradigm_label"], one.config.seed): one for one in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    file, output = folder / "rows.yaml", str(folder / "runs")
    file.write_text(yaml.safe_dump(LOCAL | ROWS | {"seeds": [0, 1]}))
    done = CliRunner().invoke(app, ["compare", str(file), "--set", f"output={output}"])
    assert done.exit_code == 0, done.output
    return folder / "runs" / "rows"


@pytest.fixture(scope="module")
def compared(folder):
    return records(folder)


def test_each_row_is_the_run_that_its_settings_make_alone(compared, tmp_path):
    alone = {
        LABELS[0]: PLAIN | {"update": ADAMW},
        LABELS[1]: LOCAL,
        LABELS[2]: LOCAL | {"paradigm": DILOCO},
    }
    for label, settings in alone.items():
        assert same(compared[label, 1], run({**settings, "seed": 1, "output": str(tmp_path)}))


def test_rows_are_of_one_scenario_and_paired_by_seed(folder):
    collection = collect([folder])
    assert collection.paradigms == LABELS
    [rows] = collection.scenarios.values()
    assert tuple(rows) == LABELS
    assert all([one.seed for one in runs] == [0, 1] for runs in rows.values())


def test_a_report_on_an_earlier_record_says_its_local_steps(compared, tmp_path):
    earlier = shutil.copytree(compared[LABELS[1], 0].path, tmp_path / "earlier")
    edit(earlier / "summary.json", paradigm_label="bsp")
    assert collect([earlier]).paradigms == (LABELS[1],)


def test_a_record_says_what_was_set_and_what_it_trained(compared):
    for record in (compared[LABELS[0], 0], load(compared[LABELS[0], 0].path)):
        assert record.summary["set"] == SYNCHRONOUS["set"]
        assert record.config.local is None
        assert (record.config.update.optimizer.name, record.config.update.lr) == ("adamw", 0.002)
        common = common_of(record.config)
        assert common.update.model_dump() == config.validate(LOCAL).update.model_dump()
        assert common.local.steps == 1
        assert record.config.label == LABELS[0]


def test_a_record_repeats_its_run(compared, tmp_path):
    record = compared[LABELS[0], 1]
    file = shutil.copy(record.path / "config.yaml", tmp_path)
    again = run(config.load(Path(file), [f"output={tmp_path}"]))
    assert same(again, record)
    assert again.config.plain() | {"output": record.config.plain()["output"]} == (
        record.config.plain()
    )


def test_other_common_settings_are_another_scenario(call, tmp_path):
    write(tmp_path / "rows.yaml", yaml.safe_dump(LOCAL | ROWS | {"timing": "only"}))
    for rate in (0.7, 0.5):
        code, _, err = call("compare", "rows.yaml", "--set", f"update.lr={rate}")
        assert code == 0, err
    scenarios = collect([tmp_path / "runs" / "rows"]).scenarios
    assert set(scenarios) == {"update.lr=0.7", "update.lr=0.5"}
    assert all(tuple(rows) == LABELS for rows in scenarios.values())


@pytest.mark.parametrize("file", [(), ("rows.yaml",)], ids=["of-the-record", "of-a-file"])
def test_a_comparison_resumes_each_row_as_it_began(folder, compared, call, tmp_path, file):
    """The newest that is left has settings of its own."""
    left = compared[LABELS[0], 0].path.name
    shutil.copytree(folder / left, tmp_path / "runs" / "rows" / left)
    shutil.copy(folder.parents[1] / "rows.yaml", tmp_path)
    code, _, err = call("compare", *file, "--resume", "runs/rows")
    assert code == 0, err
    found = records(tmp_path / "runs" / "rows")
    assert found.keys() == compared.keys()
    for key, whole in compared.items():
        assert found[key].pushes.equals(whole.pushes)


def test_a_run_of_one_row_resumes_to_the_same_end(tmp_path):
    settings = LOCAL | {"paradigm": SYNCHRONOUS, "checkpoint": {"every_progress": 0.25}}
    settings["workload"] = {"epochs": 8}
    whole = run(settings | {"output": str(tmp_path / "whole")})

    def interrupt(measures):
        if measures.now > 1.5 and list((tmp_path / "cut").rglob("checkpoints/*")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings | {"output": str(tmp_path / "cut")}, watch=interrupt)
    [cut] = listdir(tmp_path / "cut" / "rows")
    resumed = resume(tmp_path / "cut" / "rows" / cut)
    assert same(resumed, whole)
    assert resumed.summary["paradigm_label"] == LABELS[0]


def test_a_row_of_a_sweep_trains_with_its_own_settings(tmp_path):
    file = tmp_path / "sweep.yaml"
    grid = {"paradigm": [SYNCHRONOUS, "bsp"], "seed": [0, 1]}
    file.write_text(yaml.safe_dump(LOCAL | {"sweep": {"grid": grid}}))
    swept = plan(file)
    labels = {swept.trials.experiment(point).label for point in swept.points}
    assert labels == set(LABELS[:2])
    assert {swept.trials.experiment(point).local is None for point in swept.points} == {True, False}
    grid["update.lr"] = [0.5, 0.7]
    file.write_text(yaml.safe_dump(LOCAL | {"sweep": {"grid": grid}}))
    with pytest.raises(ConfigError, match=naming("update.lr update")):
        plan(file)


@pytest.mark.parametrize(
    ("paradigm", "local", "label"),
    [
        ("bsp", None, "bsp"),
        ("bsp", {"steps": 1}, "local(bsp, steps=1)"),
        ({"name": "ssp", "staleness": 3}, {"steps": 8}, "local(ssp(staleness=3), steps=8)"),
        (DILOCO, {"steps": 1}, "local(steps=4)"),
        ({"name": "bsp", "set": {"batch_size": 8}}, None, "bsp(set={batch_size: 8})"),
        (
            {"name": "bsp", "set": {"local.steps": 2}},
            {"steps": 1},
            "local(bsp(set={local.steps: 2}), steps=2)",
        ),
    ],
)
def test_a_label_says_whether_a_row_takes_local_steps(paradigm, local, label):
    assert labelled(paradigm, local=local) == label


def test_a_path_changes_one_setting_and_a_block_all_of_them():
    experiment = config.validate(LOCAL)
    for changes, momentum in (({"update.lr": 0.5}, 0.9), ({"update": {"lr": 0.5}}, 0.0)):
        choice = config.ParadigmChoice(name="bsp", set=changes)
        row = row_of(experiment, choice)
        assert (row.update.lr, row.update.momentum) == (0.5, momentum)
        assert row_of(row, row.paradigm) == row


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"workers": [{"count": 2}]}, "paradigms[1].set workers update batch_size cluster.wire"),
        ({"data.alpha": 2}, "paradigms[1].set data.alpha"),
        ({"seed": 3}, "paradigms[1].set seed"),
        ({"task": "regression"}, "paradigms[1].set task"),
        ({"cluster": {"wire": "int8"}}, "paradigms[1].set cluster cluster.wire"),
        ({"batchsize": 3}, "paradigms[1].set batchsize batch_size"),
        ({"update.lrr": 3}, "paradigms[1].set update.lrr lr"),
        ({"cluster.wire": "int9"}, "paradigms[1].set cluster.wire int8 int9"),
        ({"local": None}, "paradigms[1].set local update"),
        ({}, "paradigms[1].set"),
        (3, "paradigms[1].set 3"),
    ],
)
def test_what_a_row_cannot_set_is_named(changes, facts):
    with pytest.raises(ConfigError, match=naming(facts)):
        config.validate(LOCAL | {"paradigms": ["asp", {"name": "bsp", "set": changes}]})


def test_the_same_row_is_listed_once():
    with pytest.raises(ConfigError, match=naming("paradigms")):
        config.validate(LOCAL | {"paradigms": [SYNCHRONOUS, SYNCHRONOUS]})
    rows = [SYNCHRONOUS, {"name": "bsp", "set": {"local": None, "update": ADAMW | {"lr": 0.1}}}]
    assert len({one.label for one in config.validate(LOCAL | {"paradigms": rows}).paradigms}) == 2


def test_what_a_row_sets_is_of_no_other_row_of_its_record():
    """One row has no local steps, the others have, and one sets one of theirs."""
    rows = [
        {"name": "bsp", "set": {"local": None, "update": {"lr": 0.1}}},
        {"name": "local", "steps": 8, "set": {"local.lr": 0.02}},
        {"name": "local", "steps": 4},
    ]
    experiment = config.validate({"engine": "virtual", "local": {"lr": 0.05}, "paradigms": rows})
    each = [row_of(experiment, choice) for choice in experiment.paradigms]
    for recorded in each:
        again = config.validate(recorded.model_dump(mode="json", exclude_unset=True))
        assert (again.local, again.update) == (recorded.local, recorded.update)
        for row, choice in zip(each, again.paradigms, strict=True):
            other = row_of(again, choice)
            assert (row.local, row.update) == (other.local, other.update)
