"""`raysync compare --resume`: which runs stay, which go on, which begin, and what is refused."""

import os
import shutil

import pytest
import yaml

from raysync.core.journal import Resumed
from raysync.record.reader import load
from raysync.record.storage import listdir
from raysync.results.collection import collect
from raysync.results.ranking import rank
from raysync.results.sentences import answer
from tests.builders.files import edit, times_in, write
from tests.builders.messages import tells
from tests.builders.reports import killed
from tests.fakes.engines import SETTINGS

RUNS = [("bsp", 0), ("bsp", 1), ("ssp", 0), ("ssp", 1)]


@pytest.fixture
def begun(engine, call, tmp_path):
    """The folder of a comparison that was lost: its first run has finished, its second goes on."""
    compared = {"paradigms": ["bsp", {"name": "ssp", "staleness": 2}], "seeds": [0, 1]}
    text = yaml.safe_dump({**SETTINGS, **compared, "output": "runs"})
    file = write(tmp_path / "tiny.yaml", text)
    engine.lost_after = 35
    runs, in_second = engine.run, []

    def run(training, paradigm, *rest):
        in_second.append(paradigm.name)
        engine.lost_after = 35 if len(in_second) == 2 else None
        return runs(training, paradigm, *rest)

    engine.run = run
    code, _, err = call("compare", file)
    assert code == 130
    assert tells(err, "--resume runs/tiny")
    engine.run = runs
    folder = tmp_path / "runs" / "tiny"
    for record in records(folder):
        edit(record.path / "environment.json", pid=2**30)
    return folder


def records(folder):
    return [load(folder / name) for name in listdir(folder)]


def ran(folder):
    return sorted(
        (one.config.paradigm.name, one.config.seed, one.summary["status"], resumed(one))
        for one in records(folder)
    )


def resumed(record):
    return [line.number for line in record.journal() if isinstance(line, Resumed)]


def test_what_is_over_stays_what_was_lost_goes_on_and_the_rest_begins(begun, call):
    assert ran(begun) == [("bsp", 0, "finished", []), ("ssp", 0, "stopped", [])]
    [first] = [one for one in records(begun) if one.summary["status"] == "finished"]
    before = times_in(first.path)
    code, out, err = call("compare", "--resume", "runs/tiny", "--set", "checkpoint.keep=3")
    assert code == 0, err
    assert tells(err, "1 4 runs")
    assert "seeds 0, 1" in out
    assert f"Records: {begun}" in out
    resumptions = [[3] if run == ("ssp", 0) else [] for run in RUNS]
    assert ran(begun) == [
        (*run, "finished", numbers) for run, numbers in zip(RUNS, resumptions, strict=True)
    ]
    assert times_in(first.path) == before
    assert len({one.environment["comparison"] for one in records(begun)}) == 1
    text = answer(rank(collect([begun])))
    assert text in out, "by the rules of every report"
    assert text in call("report", str(begun), "--format", "md")[1]
    assert sorted(one.config.checkpoint.keep for one in records(begun)) == [2, 3, 3, 3]

    whole = ran(begun)  # and again: nothing is left, and the table is the same
    again = call("compare", "--resume", "runs/tiny")
    assert (again[0], again[1]) == (0, out)
    assert tells(again[2], "4 4 runs")
    assert ran(begun) == whole


def test_a_run_without_a_checkpoint_restarts_with_a_notice(begun, call):
    [lost] = [one.path for one in records(begun) if one.summary["status"] == "stopped"]
    shutil.rmtree(lost / "checkpoints")
    lost.rename(lost.with_name(f"{lost.name[:15]}-a"))  # the other is of the same second
    code, _, err = call("compare", "--resume", str(begun))
    assert code == 0, err
    assert tells(err, "checkpoint")
    finished = [(*run, "finished", []) for run in RUNS]
    assert ran(begun) == sorted([*finished, ("ssp", 0, "stopped", [])])
    code, _, err = call("compare", "--resume", str(begun))
    assert tells(err, "4 4 runs"), "the newest record of a run counts"


def test_it_goes_on_where_its_folder_is_now_and_under_a_uri(begun, call, tmp_path):
    begun.parent.rename(tmp_path / "moved")
    code, out, err = call("compare", "--resume", f"file://{tmp_path}/moved/tiny?token=secret")
    assert code == 0, err
    assert "Records: file://" in out
    assert "secret" not in out + err
    assert [status for _, _, status, _ in ran(tmp_path / "moved" / "tiny")] == ["finished"] * 4
    assert not begun.parent.exists()


def test_an_earlier_comparison_in_the_folder_is_another_one(begun, call, tmp_path, engine):
    shutil.copytree(begun, tmp_path / "copies" / "tiny")
    code, _, err = call("compare", "tiny.yaml", "--set", "output=copies", "--set", "seeds=[0]")
    assert code == 0, err
    code, _, err = call("compare", "--resume", "copies/tiny")
    assert tells(err, "2 2 runs")


def test_what_cannot_change_is_refused_by_name(begun, call):
    before = ran(begun)
    for change, says in (
        ("paradigms=[bsp]", "paradigms: 1 2"),
        ("seeds=[0, 2]", "seeds[1]: 2 1"),
        ("update.lr=0.5", "update.lr: 0.5"),
        ("output=elsewhere", "output: 'elsewhere'"),
    ):
        for file in ([], ["tiny.yaml"]):
            code, _, err = call("compare", *file, "--resume", "runs/tiny", "--set", change)
            assert (code, tells(err, says)) == (2, True), err
    assert ran(begun) == before


def test_what_cannot_go_on(begun, call, tmp_path):
    for folder in ("nowhere", ".", "runs"):
        code, _, err = call("compare", "--resume", folder)
        assert (code, tells(err, "folder")) == (2, True)
    [lost] = [one.path for one in records(begun) if one.summary["status"] == "stopped"]
    killed(lost, pid=os.getpid())
    code, _, err = call("compare", "--resume", str(begun))
    assert (code, tells(err, f"process {os.getpid()}")) == (2, True)
