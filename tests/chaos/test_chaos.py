"""Chaos: each oracle notices a fault that was planted, and a real run survives real ones."""

import json
import subprocess
import sys

import psutil
import pytest
import yaml
from msgspec.structs import replace

import raysync
from raysync.core.decisions import Apply, Drop
from raysync.core.journal import encode, header
from raysync.core.machine import Machine
from raysync.paradigms import make, rebuild
from tests.builders.cluster import TINY
from tests.builders.journals import journal
from tests.chaos import oracles, processes, trial
from tests.chaos.__main__ import strike
from tests.chaos.schedule import PROCESSES, SIGNALS, TARGETS, Strike, schedule
from tests.chaos.schedules import check_batch


def test_a_schedule_is_drawn_from_its_seed_alone():
    drawn = [schedule(TARGETS, SIGNALS, 200, 10.0, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    gaps = [each.after_s for each in drawn[0]]
    assert 5 <= min(gaps) < 6 < 14 < max(gaps) <= 15
    assert {each.target for each in drawn[0]} == set(TARGETS)
    assert {each.signal for each in drawn[0]} == set(SIGNALS)
    assert {each.one_of("abc") for each in drawn[0]} == set("abc")


# ---- oracles ----

ENTRIES = journal("bsp", 12)
PUSHES = [entry for entry in ENTRIES if hasattr(entry.event, "clock")]


def found_in(entries, machine=None):
    verdicts = oracles.judge_entries(entries, machine or Machine(make("bsp")))
    return {oracle for oracle, failure in verdicts.items() if failure}


def replayed(entries):
    texts = [header(make("bsp"), None), *map(encode, entries)]
    return oracles.judge_journal([text + "\n" for text in texts], rebuild)


def changed(change):
    """The journal whose updates are what `change` makes of them: a list of decisions each."""
    return [
        replace(
            entry,
            decisions=tuple(
                new
                for each in entry.decisions
                for new in (change(each) if isinstance(each, Apply) else [each])
            ),
        )
        for entry in ENTRIES
    ]


def test_a_journal_that_is_whole_is_accepted_and_another_decision_is_not():
    assert not any(replayed(ENTRIES).values())
    assert not found_in(ENTRIES)
    broken = replayed(changed(lambda update: [replace(update, publish=False)]))
    assert [*broken] == [oracles.REPLAY]
    assert broken[oracles.REPLAY]


@pytest.mark.parametrize(
    ("entries", "oracle"),
    [
        (changed(lambda u: [replace(u, pushes=u.pushes[:1])]), {oracles.CONSERVATION}),
        (changed(lambda u: [u, Drop(u.pushes[0], "again")]), {oracles.CONSERVATION}),
        (changed(lambda u: [replace(u, version=u.version + (u.version > 3))]), {oracles.VERSIONS}),
        (changed(lambda u: [replace(u, version=1)]), {oracles.VERSIONS}),
        ([each for each in ENTRIES if each is not PUSHES[4]], {oracles.CONSERVATION}),
        ([*ENTRIES, replace(PUSHES[4], decisions=())], {oracles.CONSERVATION, oracles.ONCE}),
    ],
    ids=["lost", "dropped, too", "a gap", "one version", "never received", "pushed again"],
)
def test_pushes_and_versions_that_do_not_add_up_are_noticed(entries, oracle):
    assert found_in(entries) == oracle


@pytest.mark.parametrize("paradigm", ["bsp", "asp"])
def test_another_model_is_noticed(paradigm, tmp_path):
    """By its bits under BSP, else by its metric."""
    settings = TINY | {"engine": "virtual", "output": str(tmp_path), "paradigm": paradigm}
    record, same = (raysync.run(settings) for _ in range(2))
    other = raysync.run(settings | {"update": {"lr": 1e-9}})
    assert trial.judge_model(record, same) == ""
    assert trial.judge_model(record, other)


def test_only_processes_with_the_mark_are_known_and_killed():
    wait = [sys.executable, "-c", "input()"]
    ours, other = (
        subprocess.Popen(wait, stdin=subprocess.PIPE, env=processes.with_mark(mark))
        for mark in ("a-mark-of-ours", "another-mark")
    )
    try:
        assert [one.pid for one in processes.marked("a-mark-of-ours")] == [ours.pid]
        assert processes.victims("a-mark-of-ours", "worker") == []
        processes.kill_all("a-mark-of-ours")
        assert not psutil.pid_exists(ours.pid), "and it was waited for"
        assert other.poll() is None
        assert processes.left_behind("a-mark-of-ours") == []
    finally:
        other.communicate()


@pytest.mark.parametrize(
    ("title", "target"),
    [
        *((f"ray::{each}", "worker") for each in ("Worker.serve", "Worker", "step", "Stage.reset")),
        *((f"ray::{each}", "server") for each in ("Server", "Server.serve", "apply")),
        *((f"ray::{each}", "evaluator") for each in ("Evaluator", "state_dict")),
        ("ray::Controller.run", "controller"),
        *((f"ray::{each}", "") for each in ("IDLE", "Workers", "stepped", "step_by_step")),
        ("raylet", ""),
    ],
)
def test_actors_are_known_by_the_titles_of_their_processes(title, target, monkeypatch):
    process = psutil.Process()
    monkeypatch.setattr(process, "cmdline", lambda: [title])
    assert processes.kind_of(process) == target


def test_schedules_in_virtual_time_are_survived(one_thread):
    row = check_batch(0, 12)
    assert row["failures"] == 0
    assert row["resumed exactly"]
    assert row["resumed from a cut"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_run_survives_the_loss_of_each_process_of_its_command_and_of_a_node(tmp_path):
    """Gradients of 300 KB, which go through the object stores of the nodes."""
    settings = {
        "model": {"name": "mlp", "hidden": [1024]},
        "workers": [{"name": "w", "count": 2, "step_s": 0.05, "cpus": 0.5}],
        "workload": {"samples": 9600},
        "checkpoint": {"every_s": 0.5},
        "cluster": {
            "server_cpus": 0.5,
            "evaluator_cpus": 0.5,
            "restarts": {"attempts": 20, "backoff_s": 0.1},
        },
    }
    file, out = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(TINY | settings))
    strike(file, out, [Strike(0.5, target, "kill", 0.3) for target in (*PROCESSES, "node")])
    result = json.loads((out / "chaos.json").read_text())
    assert set(result["oracles"].values()) == {"ok"}
    assert len(result["oracles"]) == 7
    struck = {each["target"]: each["faults"] + each["spared"] for each in result["targets"]}
    assert struck == dict.fromkeys(TARGETS, 1)
    assert result["figures"]["resumed"] >= 1
    assert result["lost_with_nodes"]
