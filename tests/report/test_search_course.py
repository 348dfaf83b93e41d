"""A search: its best trials, whatever else was tried, and what is compared of it."""

import shutil

import pandas as pd
import pytest

from raysync.record.run_end import SCHEDULER
from raysync.record.sweeps import RECORDS, load_sweep, trial_name, write_table
from raysync.results.collection import collect
from raysync.results.markdown import markdown
from raysync.results.page import figures_in
from raysync.results.ranking import rank
from raysync.results.search_course import course_of
from raysync.results.sentences import search_text
from tests.builders.messages import tells
from tests.builders.reports import BASE
from tests.builders.sweeps import Trial, write_sweep

LR = "update.lr"
SEARCH = {
    "grid": {"paradigm": ["bsp", "asp", {"name": "ssp", "staleness": 9}], "seed": [0, 1]},
    "sample": {LR: {"loguniform": [0.001, 1.0]}},
    "search": {"name": "optuna"},
    "samples": 6,
}
TRIALS = [
    ("bsp", 0.001, None, ""),
    ("asp", 0.3, None, ""),
    ("bsp", 0.2, None, ""),
    ("asp", 0.01, None, ""),
    ("asp", 0.01, None, ""),
    ("asp", 0.5, None, SCHEDULER),
    ("bsp", 0.2, 1, ""),
    ("asp", 0.3, 1, ""),
]
"""Paradigm, rate, seed of those that repeat the best, and what of the sweep ended it."""


@pytest.fixture(scope="module")
def searched(tmp_path_factory, torch_of_one_thread):
    trials = [
        Trial(
            {"paradigm": paradigm, LR: lr} | ({} if seed is None else {"seed": seed}),
            stop_at=0.3 if by else None,
            by=by,
        )
        for paradigm, lr, seed, by in TRIALS
    ]
    folder = tmp_path_factory.mktemp("search")
    return write_sweep(folder, BASE | {"sweep": SEARCH}, trials)


def test_the_best_is_the_best_of_the_table(searched):
    course = course_of(load_sweep(searched))
    table = pd.read_csv(searched / "sweep.csv")
    assert [trial.settings[LR] for trial in course.trials] == [lr for _, lr, *_ in TRIALS[:6]]
    of_search = table[table["config/seed"].isna() & (table.end == "done")]
    expected = of_search.loc[of_search.final_accuracy.idxmax()]
    assert course.best.settings[LR] == expected["config/update.lr"]
    assert course.best.value == expected.final_accuracy
    best = of_search.sort_values("final_accuracy").groupby("config/paradigm").last()
    assert {
        paradigm: trial.value for paradigm, trial in course.best_of_paradigms.items()
    } == best.final_accuracy.to_dict()
    assert course.repeated == 1


def test_each_paradigm_is_compared_at_its_best_with_all_its_seeds(searched):
    collection = collect([searched])
    assert {(run.paradigm, run.seed, run.record.config.update.lr) for run in collection.runs} == {
        ("bsp", 0, 0.2),
        ("bsp", 1, 0.2),
        ("asp", 0, 0.3),
        ("asp", 1, 0.3),
    }
    assert list(collection.scenarios) == [""]
    table = pd.read_csv(searched / "sweep.csv")
    for entry in rank(collection).final.ranked:
        rate = {"bsp": 0.2, "asp": 0.3}[entry.paradigm]
        of_best = table[
            (table["config/paradigm"] == entry.paradigm) & (table["config/update.lr"] == rate)
        ]
        assert entry.value.mean == pytest.approx(of_best.final_accuracy.mean())
        assert entry.value.count == len(of_best) == 2


def test_it_is_said_and_drawn(searched):
    collection = collect([searched])
    text, best = search_text(collection.search), collection.search.best
    assert text in markdown(collection)
    assert tells(text, f"6 {best.settings['paradigm']} {best.settings[LR]:g}")
    assert tells(text, "ssp(staleness=9)"), "which was never tried"
    assert tells(text, "sweep.scheduler")
    [figure] = [figure for figure in figures_in(collection, "") if figure.key == "search"]
    drawn = {trace["name"]: trace["x"] for trace in figure.traces}
    assert drawn == {"best so far": [1, 2, 3, 4, 5], "bsp": [1, 3], "asp": [2, 4, 5]}


def test_a_search_of_one_trial(searched, tmp_path):
    one = shutil.copytree(searched, tmp_path / "one")
    for number in range(1, len(TRIALS)):
        shutil.rmtree(one / RECORDS / trial_name(number))
    write_table(one)
    collection = collect([one])
    assert len(collection.runs) == 1
    assert search_text(collection.search)
    assert rank(collection).final.leader.sure == "alone"
