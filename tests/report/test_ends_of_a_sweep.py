"""A sweep of 60 trials that do not all end alike: its answer is that of the records alone."""

import json
from itertools import product
from statistics import mean

import pytest

from raysync.record.run_end import TIME_BUDGET
from raysync.record.sweeps import RECORDS, load_sweep, trial_name, write_table
from raysync.results.collection import collect
from raysync.results.markdown import markdown
from raysync.results.ranking import rank
from raysync.results.sentences import answer
from tests.builders.sweeps import Trial, write_sweep

TIMING = {
    "name": "ends",
    "engine": "virtual",
    "timing": "only",
    "workload": {"samples": 1280},
    "workers": [
        {"name": "fast", "step_s": 0.1, "jitter": {"sigma": 0.3}},
        {"name": "slow", "step_s": 0.15},
    ],
}
SETTINGS = {
    "after_s": {"stop": {"after_s": 0.3}},
    "diverged": {
        "timing": "with-gradients",
        "model": {"name": "mlp", "hidden": [4]},
        "data": {"name": "digits", "train_samples": 64, "test_samples": 16},
        "evaluation": {"marks": 1},
        "update": {"lr": 1e30, "momentum": 0.9},
    },
}
"""Kind of trial -> how its settings differ."""
SEEDS, OF_EACH_KIND = 30, 3
KINDS = ("killed", "stopped", "diverged", "after_s", "budget")
"""Each in `OF_EACH_KIND` seeds of both paradigms; in other seeds of each."""


def kind_of(paradigm, seed):
    first = 0 if paradigm == "bsp" else 2
    number = (seed - first) // OF_EACH_KIND
    return KINDS[number] if seed >= first and number < len(KINDS) else "done"


def trial_of(paradigm, seed):
    kind = kind_of(paradigm, seed)
    ended = kind not in ("killed", "stopped", "budget")
    return Trial(
        {"paradigm": paradigm, "seed": seed},
        settings=SETTINGS.get(kind, {}),
        stop_at=None if ended else -1.0,
        ended=ended,
        by=TIME_BUDGET if kind == "budget" else "",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    grid = {"paradigm": ["bsp", "asp"], "seed": list(range(SEEDS))}
    trials = [trial_of(*point) for point in product(*grid.values())]
    folder = tmp_path_factory.mktemp("ends")
    write_sweep(folder, TIMING | {"sweep": {"grid": grid}}, trials)
    for number, trial in enumerate(trials):
        if kind_of(**trial.varied) == "killed":
            [summary] = folder.glob(f"{RECORDS}/{trial_name(number)}/*/summary.json")
            summary.unlink()
            journal = summary.with_name("journal.jsonl")
            journal.write_text(journal.read_text().rpartition('{"type":"Ended"')[0])
    write_table(folder)
    return folder


def seconds_in(folder):
    """(paradigm, seed) -> seconds of the runs that did their work, from their journals alone."""
    found = {}
    for journal in folder.glob(f"{RECORDS}/*/*/journal.jsonl"):
        head, *lines = map(json.loads, journal.read_text().splitlines())
        about, last = head["about"], lines[-1]
        if last["type"] == "Ended" and last["status"] == "finished" and "by" not in last:
            found[about["paradigm"], about["seed"]] = last["at"]
    return found


def test_the_table_says_how_each_trial_ended(folder):
    table = load_sweep(folder).table
    expected = {
        "killed": ("broken", "killed"),
        "stopped": ("cut", "signal"),
        "diverged": ("diverged", ""),
        "after_s": ("cut", "stop.after_s"),
        "budget": ("cut", TIME_BUDGET),
        "done": ("done", ""),
    }
    for row in table.to_dict("records"):
        kind = kind_of(row["config/paradigm"], row["config/seed"])
        assert (row["end"], row["ended_by"] or "") == expected[kind]


def test_the_answer_is_that_of_the_records_alone(folder):
    ranking = rank(collect([folder]))
    seconds = seconds_in(folder)
    counted = {
        paradigm: [time for (name, _), time in seconds.items() if name == paradigm]
        for paradigm in ("bsp", "asp")
    }
    assert {len(times) for times in counted.values()} == {SEEDS - len(KINDS) * OF_EACH_KIND}
    [first, second] = ranking.whole_work.ranked
    for entry in (first, second):
        assert entry.value.mean == pytest.approx(mean(counted[entry.paradigm]))
        assert entry.value.total == SEEDS
    longest = max(seconds.values())
    left_out = {(each.paradigm, each.seed) for each in ranking.whole_work.compared.left_out}
    assert left_out == {
        (paradigm, seed)
        for paradigm in counted
        for seed in range(SEEDS)
        if kind_of(paradigm, seed) in ("killed", "stopped", "after_s", "budget")
    }, f"none of these went on for {longest} s"
    assert (first.paradigm, ranking.deciding.leader.sure) == ("asp", "clear")
    assert answer(ranking) in markdown(collect([folder]))
