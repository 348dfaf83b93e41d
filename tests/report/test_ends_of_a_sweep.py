"""A sweep of 200 trials that do not all end alike: its answer is that of the records alone."""

import json
from statistics import mean

import pytest
import yaml

import raysync
from raysync.record.run_end import TIME_BUDGET
from raysync.record.sweeps import (
    RECORDS,
    TrialNote,
    load_sweep,
    trial_name,
    write_note,
    write_table,
)
from raysync.results.collection import collect
from raysync.results.markdown import markdown
from raysync.results.ranking import rank
from raysync.results.sentences import answer

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
DIVERGING = {
    "timing": "with-gradients",
    "model": {"name": "mlp", "hidden": [4]},
    "data": {"name": "digits", "train_samples": 64, "test_samples": 16},
    "evaluation": {"marks": 1},
    "update": {"lr": 1e30, "momentum": 0.9},
}
SEEDS, OF_EACH_KIND = 100, 10
KINDS = ("killed", "stopped", "diverged", "after_s", "budget")
"""Each in `OF_EACH_KIND` seeds of both paradigms; in other seeds of each."""


def kind_of(paradigm, seed):
    first = 0 if paradigm == "bsp" else 5
    number = (seed - first) // OF_EACH_KIND
    return KINDS[number] if seed >= first and number < len(KINDS) else "done"


def stop_at(progress):
    def watch(measures):
        if measures.progress > progress and not measures.ended:
            raise KeyboardInterrupt

    return watch


def train(folder, name, paradigm, seed):
    """Run a trial that ends as it shall, and note it as its sweep would."""
    kind = kind_of(paradigm, seed)
    settings = TIMING | {"name": name, "output": str(folder / RECORDS), "seed": seed}
    settings["paradigm"] = {"name": paradigm}
    settings |= DIVERGING if kind == "diverged" else {}
    settings |= {"stop": {"after_s": 0.3}} if kind == "after_s" else {}
    by = TIME_BUDGET if kind == "budget" else ""
    ended = kind not in ("killed", "stopped", "budget")
    write_note(folder, TrialNote(name, {"paradigm": paradigm, "seed": seed}, ended, by=by))
    if ended:
        return raysync.run(settings)
    with pytest.raises(KeyboardInterrupt):
        raysync.run(settings, watch=stop_at(-1.0))
    if kind == "killed":
        [path] = (path for path in (folder / RECORDS / name).iterdir() if path.is_dir())
        (path / "summary.json").unlink()
        journal = path / "journal.jsonl"
        journal.write_text(journal.read_text().rpartition('{"type":"Ended"')[0])
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends")
    grid = {"paradigm": ["bsp", "asp"], "seed": list(range(SEEDS))}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(TIMING | {"sweep": {"grid": grid}}))
    trials = [(paradigm, seed) for paradigm in grid["paradigm"] for seed in grid["seed"]]
    for number, (paradigm, seed) in enumerate(trials):
        train(folder, trial_name(number), paradigm, seed)
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
