"""Chaos: its schedule, the processes that it may strike, and the oracles, each of which notices a
journal that was broken by hand.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
from msgspec.structs import replace

from raysync import config
from raysync.core.decisions import Apply, Drop
from raysync.core.journal import encode, header
from raysync.errors import ConfigError
from raysync.paradigms import make, rebuild
from tests.builders.journals import journal
from tests.builders.messages import naming
from tests.chaos import oracles, processes, trial
from tests.chaos.__main__ import main
from tests.chaos.memory import MemorySamples
from tests.chaos.nodes import NODE_AWAY_S, RAYLET, Nodes, nodes_for
from tests.chaos.schedule import SIGNALS, TARGETS, Strike, names_in, schedule

STRANGE = ["--set", "cluster.address=HOST:6379", "--set", "checkpoint.every_s=5"]

# ---- the schedule ----


def test_a_schedule_is_drawn_from_its_seed_alone():
    drawn = [schedule(TARGETS, SIGNALS, 200, 10.0, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    gaps = [strike.after_s for strike in drawn[0]]
    assert 5 <= min(gaps) < 6 < 14 < max(gaps) <= 15
    assert {strike.target for strike in drawn[0]} == set(TARGETS)
    assert {strike.signal for strike in drawn[0]} == set(SIGNALS)
    assert {strike.one_of("abc") for strike in drawn[0]} == set("abc")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--faults", "worker,sever"], "--faults: 'sever' 'server'"),
        (["--faults", ","], "--faults"),
        (["--signals", "term"], "--signals: 'term'"),
        (["--kills", "0"], "--kills 0: 1"),
        (["--every", "0"], "--every 0: 0"),
        (["--tolerance", "-1"], "--tolerance -1: 0"),
        ([], "--set checkpoint.every_s=5"),
        (["--set", "engine=virtual"], r"chaos: engine: virtual"),
        (["--out", "."], "--out"),
        (["--faults", "node", *STRANGE], "--faults node: cluster.address: 'HOST:6379':"),
    ],
)
def test_mistakes_are_told_before_anything_runs(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text("name: x\n")
    monkeypatch.setattr(sys, "argv", ["chaos", "x.yaml", "--out", "new", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert re.search(naming(says), capsys.readouterr().err)
    assert not (tmp_path / "new").exists()


def test_a_disk_that_cannot_be_filled_here_is_refused_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text("name: x\n")
    monkeypatch.setattr(processes, "can_fill_disks", lambda: False)
    arguments = ["x.yaml", "--out", "new", "--faults", "disk"]
    monkeypatch.setattr(sys, "argv", ["chaos", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "--faults disk: only Linux" in capsys.readouterr().err


def test_names_are_a_list_with_commas():
    assert names_in("--faults", " worker, driver ", TARGETS) == ("worker", "driver")


# ---- processes ----


def test_a_checkpoint_that_is_removed_while_it_is_looked_for_is_none(tmp_path, monkeypatch):
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    assert trial.folders_with(tmp_path, "manifest.json") == [tmp_path / "1", tmp_path / "2"]
    listed = sorted(tmp_path.iterdir())
    shutil.rmtree(tmp_path / "1")
    monkeypatch.setattr(type(tmp_path), "iterdir", lambda self: iter(listed))
    assert trial.folders_with(tmp_path, "manifest.json") == [tmp_path / "2"]
    monkeypatch.undo()
    assert trial.folders_with(tmp_path / "gone", "manifest.json") == []


def test_a_semaphore_of_a_stranger_is_no_memory_that_was_left(tmp_path, monkeypatch):
    for name in ("sem.loky-1-abc", "plasma-1"):
        (tmp_path / name).touch()
    monkeypatch.setattr(processes, "SHARED_MEMORY", tmp_path)
    assert processes.segments() == {"plasma-1"}


@pytest.mark.parametrize(
    ("held_mb", "says"),
    [
        ([100] * 10 + [900] * 30, ""),
        ([900, 700] * 20, ""),
        ([900] * 20 + [1500] * 20, "it grew from 900 to 1500 MB"),
        ([900] * 20 + [1050] * 20, ""),
        ([1, 1000] * 5, ""),
        ([900] * 10 + [300] * 10 + [900] * 20, ""),
    ],
)
def test_memory_that_grows_is_noticed(held_mb, says):
    assert MemorySamples([round(mb * 1e6) for mb in held_mb]).growth() == says


def test_the_memory_of_marked_processes_is_sampled_every_few_seconds():
    wait = [sys.executable, "-c", "input()"]
    ours = subprocess.Popen(wait, stdin=subprocess.PIPE, env=processes.with_mark(os.environ, "us"))
    samples = MemorySamples()
    try:
        for now_s in (0.0, 1.0, 5.0):
            samples.take("us", now_s)
        assert len(samples.held_bytes) == 2
        assert min(samples.held_bytes) > 1e6
    finally:
        ours.kill()
        ours.wait()


def test_only_processes_with_the_mark_are_known_and_killed():
    wait = [sys.executable, "-c", "input()"]
    ours, other = (
        subprocess.Popen(wait, stdin=subprocess.PIPE, env=processes.with_mark(os.environ, mark))
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


def test_the_mark_is_added_to_what_a_job_of_ray_was_given():
    before = {processes.JOB_CONFIG: '{"runtime_env": {"pip": [], "env_vars": {"A": "1"}}}'}
    after = processes.with_mark(before, "m")
    assert after[processes.MARK] == "m"
    assert after[processes.JOB_CONFIG] == (
        '{"runtime_env": {"pip": [], "env_vars": {"A": "1", "RAYSYNC_CHAOS": "m"}}}'
    )


def test_actors_are_told_by_the_titles_of_their_processes():
    class Process:
        def __init__(self, title):
            self.cmdline = lambda: [title]

    titles = {
        "worker": ["ray::Worker.serve", "ray::Worker", "ray::step", "ray::Stage.reset"],
        "server": ["ray::Server", "ray::Server.serve", "ray::apply"],
        "evaluator": ["ray::Evaluator", "ray::state_dict"],
        "controller": ["ray::Controller.run"],
        "": ["ray::IDLE", "raylet", "ray::Workers", "ray::stepped", "ray::step_by_step"],
    }
    for target, those in titles.items():
        known = [target] * len(those) if target else []
        assert processes.kinds_of(map(Process, those)) == known


# ---- nodes ----


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"workers": [{"count": 2}]}, (1, 4)),
        ({"workers": [{"count": 2, "cpus": 0.5}]}, (1, 3)),
        ({"workers": [{"count": 3, "cpus": 2}]}, (2, 4)),
        ({"workers": [{"cpus": 0.3}], "cluster": {"server_cpus": 0.4, "evaluator_cpus": 0.3}},
         (1, 1)),
    ],
)  # fmt: skip
def test_there_are_as_many_nodes_as_hold_all_actors(settings, expected):
    assert nodes_for(config.validate(settings)) == expected


def test_nodes_have_cpus_alone():
    with pytest.raises(ConfigError, match="worker group 'w' asks for more than CPUs"):
        nodes_for(config.validate({"workers": [{"name": "w", "gpus": 1}]}))


def test_a_lost_node_takes_its_processes_with_it_and_comes_back(monkeypatch):
    """Real processes stand for a raylet and an actor below it."""
    below = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    removed = []

    class Cluster:
        address = "HOST:1"

        def __init__(self, **arguments):
            assert arguments["head_node_args"]["num_cpus"] == 0

        def add_node(self, **arguments):
            wait = [sys.executable, "-c", below]
            process = subprocess.Popen(wait, stdin=subprocess.PIPE)
            info = SimpleNamespace(process=process)
            return SimpleNamespace(all_processes={RAYLET: [info]}, process=process)

        def remove_node(self, node, allow_graceful):
            assert not allow_graceful
            removed.append(node.process.wait())

        def shutdown(self):
            for node in subject.present:
                node.started.process.communicate()

    monkeypatch.setattr("tests.chaos.nodes.Cluster", Cluster)
    with Nodes(config.validate({"workers": [{"count": 1}]})) as subject:
        assert len(subject.present) == 3
        victim = subject.present[1]
        raylet = psutil.Process(victim.started.process.pid)
        while not (children := raylet.children()):
            pass
        assert subject.lose(victim, 10.0) == []
        assert removed == [-9]
        psutil.wait_procs(children, timeout=10)
        assert not children[0].is_running()
        assert len(subject.present) == 2
        assert subject.tend(10.0 + NODE_AWAY_S - 0.1) == 0
        assert subject.tend(10.0 + NODE_AWAY_S) == 1
        assert len(subject.present) == 3


# ---- a full disk ----

WRITES = """
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(b"x" * 100)
    print("begun", flush=True)
    input()
    try:
        file.write(b"x" * 20000)
        file.write(b"x")
    except OSError:
        sys.exit(sys.argv[2])
"""


@pytest.fixture
def trial_on(tmp_path):
    """Makes a trial whose command writes a journal, and says something where that fails."""
    children = []

    def make_trial(says):
        folder = tmp_path / "run"
        (folder / "record").mkdir(parents=True)
        journal = folder / "record" / "journal.jsonl"
        subject = trial.Trial(tmp_path, [], [], folder, os.environ, None, lambda text: None)
        with (folder / trial.LOG).open("ab") as log:
            command = [sys.executable, "-c", WRITES, str(journal), says]
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        children.append(child)
        assert child.stdout.readline() == b"begun\n"
        subject._child = child
        return subject, child

    yield make_trial
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.skipif(not processes.can_fill_disks(), reason="only Linux can fill a disk")
@pytest.mark.parametrize(
    ("says", "unclear"),
    [
        (f"raysync: {trial.DISK_ERROR}: File too large", []),
        (f"Traceback: {trial.DISK_ERROR}", [f"Traceback: {trial.DISK_ERROR}"]),
        ("an OSError", ["an OSError"]),
        ("", ["it said nothing"]),
    ],
)
def test_a_full_disk_must_end_in_a_clear_error(trial_on, says, unclear):
    subject, child = trial_on(says)
    notices = []

    def notify(text):
        notices.append(text)
        child.stdin.write(b"\n")  # the command goes on to write
        child.stdin.flush()

    subject._notify = notify
    subject._strike(Strike(1, "disk", "kill", 0.5))
    assert child.poll() is not None
    assert notices == [f"disk: no file grows beyond {trial.MESSAGE_BYTES} bytes."]
    assert [each.target for each in subject.outcome.struck] == ["disk"]
    assert subject.outcome.unclear == unclear


@pytest.mark.parametrize(
    ("says", "unclear"),
    [
        ("server: an object store of Ray is full (157 MB a node), and so", []),
        ("server: an object store of Ray is\nfull (75 to 157 MB a node), and so", []),
        ("server: an object store of Ray is full, and so is the disk", 1),
        ("Traceback: an object store of Ray is full (157 MB a node)", 1),
        ("", ["it said nothing"]),
    ],
)
def test_a_full_store_that_ends_a_command_must_be_named(trial_on, says, unclear, monkeypatch):
    """The command is over, and counts as one that can be resumed."""
    subject, child = trial_on("")
    child.communicate()
    subject.outcome.struck.append(Strike(1, "store", "kill", 0.5))
    log = subject._folder / trial.LOG
    subject._printed_bytes = log.stat().st_size
    log.write_text(log.read_text() + says)
    resumed = []
    monkeypatch.setattr(subject, "_has_begun", lambda: True)
    monkeypatch.setattr(subject, "_is_over", lambda: False)
    monkeypatch.setattr(subject, "_resume", lambda: resumed.append(True))
    assert subject._goes_on()
    assert resumed
    assert subject.outcome.fatal == {"store": 1}
    assert subject.outcome.unclear == ([says] if unclear == 1 else unclear)


@pytest.mark.skipif(not processes.can_fill_disks(), reason="only Linux can fill a disk")
def test_the_disk_of_a_command_that_is_over_is_spared(trial_on):
    subject, child = trial_on("")
    child.communicate()
    subject._strike(Strike(1, "disk", "kill", 0.5))
    assert not subject.outcome.struck
    assert subject.outcome.spared["disk"] == 1


# ---- oracles ----


def texts_of(entries):
    lines = [header(make("bsp"), None), *map(encode, entries)]
    return [line + "\n" for line in lines]


def verdicts_of(entries):
    return oracles.judge_journal(texts_of(entries), partial(rebuild, trust=True))


class Replayed:
    """A replay that accepted the journal, so that the other oracles are asked."""

    def __init__(self, buffered=()):
        self.machine = type(
            "M", (), {"roster": type("R", (), {"buffered": dict.fromkeys(buffered)})}
        )
        self.difference = None


def found_in(entries, buffered=()):
    verdicts = oracles.judge_lines(entries, Replayed(buffered))
    return {verdict.oracle for verdict in oracles.failed(verdicts)}


@pytest.fixture
def entries():
    whole = journal("bsp", 12)
    assert not oracles.failed(verdicts_of(whole))
    assert not found_in(whole)
    return whole


def changed(entries, change):
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
        for entry in entries
    ]


def test_a_decision_that_is_another_is_noticed(entries):
    broken = changed(entries, lambda update: [replace(update, publish=False)])
    [verdict] = verdicts_of(broken)
    assert verdict.oracle == oracles.REPLAY
    assert "event" in verdict.failure


@pytest.mark.parametrize(
    ("change", "oracle"),
    [
        (lambda update: [replace(update, pushes=update.pushes[:1])], oracles.CONSERVATION),
        (lambda update: [update, Drop(update.pushes[0], "again")], oracles.CONSERVATION),
        (lambda update: [replace(update, version=update.version + (update.version > 3))],
         oracles.VERSIONS),
        (lambda update: [replace(update, version=1)], oracles.VERSIONS),
    ],
)  # fmt: skip
def test_updates_that_are_wrong_are_noticed(entries, change, oracle):
    assert found_in(changed(entries, change)) == {oracle}


def test_a_push_that_is_lost_or_comes_again_is_noticed(entries):
    pushes = [entry for entry in entries if oracles.pushes_of([entry])]
    assert oracles.CONSERVATION in found_in([each for each in entries if each is not pushes[4]])
    again = [*entries, replace(pushes[4], decisions=())]
    assert found_in(again) == {oracles.CONSERVATION, oracles.ONCE}
    [last] = oracles.pushes_of([pushes[4]])
    assert found_in([*entries, replace(pushes[4], decisions=())], [last]) == {oracles.ONCE}


def test_a_run_without_checkpoints_or_processes_is_refused():
    with pytest.raises(ConfigError, match="no checkpoints"):
        trial.check(config.validate({}))
    with pytest.raises(ConfigError, match="engine: virtual"):
        trial.check(config.validate({"engine": "virtual", "checkpoint": {"every_s": 1}}))
    trial.check(config.validate({"checkpoint": {"every_s": 1}}))
