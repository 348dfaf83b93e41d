"""`raysync watch`: what is read of a journal that grows, how a run stands, and what is seen
of it.
"""

import io
import json
import os
import pickle
import platform
import re
import subprocess
from datetime import datetime

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

import raysync
from raysync import config
from raysync.cli import progress_lines, watch
from raysync.cli.console import VisibleConsole
from raysync.cli.run_view import RunView
from raysync.cli.watch import QUIET_S, Watcher, newest
from raysync.core.decisions import Drop, Hold, Note
from raysync.core.events import Joined, Left, Pushed
from raysync.core.journal import Ended, Entry, Evaluation, Remark, Report, encode, header
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.record import storage
from raysync.record.event_text import texts_of
from raysync.record.journal_file import JournalTail
from raysync.record.measures import Measures
from raysync.record.reader import load
from raysync.record.run_status import FREQUENT, RARE, RunStatus
from raysync.record.storage import clean
from raysync.record.uploader import COPY_EVERY_S
from raysync.record.writer import RecordWriter
from raysync.testing.drive import SAMPLES
from tests.builders.journals import FAST, SLOW, driven, journal
from tests.builders.messages import Telling, tells
from tests.builders.schedules import joins

ELASTIC = {"then": "asp", "fraction": 0.7, "online": "elastic", "window": 2, "windows": 1}
SCORE = Evaluation(0.5, 0.5, 1, 2.0, metrics={"accuracy": 0.75, "loss": 0.3})


def lines_of(*arguments, **parameters):
    return journal(*arguments, loss=0.5, **parameters)


def standing_of(lines, workload=20 * SAMPLES):
    status = RunStatus(Measures(workload))
    for line in lines:
        status.feed(line)
    return status


def told(lines, *, rare=None):
    return [news for line in lines for news in texts_of(line) if rare is None or news.rare == rare]


# ---- following ----

LINES = [*lines_of("ssp", 12), SCORE, Remark(3.0, "müde"), Ended("finished", 9.0)]
TEXT = (header(make("ssp"), 960) + "\n" + "".join(encode(line) + "\n" for line in LINES)).encode()


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=8), at_most=st.integers(1, 5))
def test_a_journal_is_followed_wherever_what_is_on_disk_ends(tmp_path_factory, cuts, at_most):
    path, seen, done = tmp_path_factory.mktemp("follow") / "journal.jsonl", [], 0
    path.touch()
    with JournalTail(path) as journal, path.open("ab", buffering=0) as file:
        for cut in sorted({*cuts, len(TEXT)}):
            file.write(TEXT[done:cut])
            done = cut
            while lines := journal.read(at_most):
                assert len(lines) <= at_most
                seen += lines
            assert seen == LINES[: max(0, TEXT[:cut].count(b"\n") - 1)]
            assert (journal.head is not None) == (b"\n" in TEXT[:cut])
    assert seen == LINES


# ---- what is told ----


def test_lagtuner_tells_what_it_granted_and_what_came_of_it(snapshot):
    news = told(lines_of("lagtuner", 40, s_lower=1, s_upper=4), rare=False)
    assert "\n".join(dict.fromkeys(each.text for each in news)) == snapshot
    assert not told(lines_of("lagtuner", 40), rare=True)


def test_what_is_rare_is_told_apart(snapshot):
    workers = [f"a-{number}#1" for number in range(4)] + [SLOW]
    churn = [Left(at=30.5, worker="a-0#1"), Joined(at=32.0, worker="a-0#2")]
    leave = Entry(Left(at=3.0, worker=FAST), (), Report(why="its actor died", restart_in_s=1.5))
    lines = [
        *lines_of("sync-switch", 150, churn, workers, 150 * SAMPLES, **ELASTIC),
        Remark(99.0, "So it is."),
        Ended("failed", 100.0, "server: broken"),
        leave,
        Entry(Joined(at=8.25, worker="a-0#2"), (), Report(away_s=5.25)),
    ]
    news = told(lines, rare=True)
    kinds = "straggler suspended restored switch left joined remark ended left joined"
    assert [each.kind for each in news] == kinds.split()
    [row] = standing_of([Entry(Joined(at=0.0, worker=FAST), ()), leave]).rows()
    assert "\n".join([*(each.text for each in news), row.state]) == snapshot


def test_a_note_of_a_users_own_paradigm_is_shown_with_its_values(snapshot):
    notes = (
        Note("controller", FAST, {"share": 0.123456}),
        Note("mood", SLOW),
        Drop((FAST, 3), "too old"),
    )
    news = texts_of(Entry(Joined(at=0.0, worker=FAST), notes))
    assert [each.text for each in news] == snapshot
    assert all(not each.rare for each in news), "it may come with each push"


# ---- how it stands ----


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bsp", {}),
        ("asp", {}),
        ("ssp", {"staleness": 1}),
        ("lagtuner", {"s_lower": 1, "s_upper": 4}),
        ("hybrid", {"k": 2, "staleness_tolerance": 2}),
        ("backup-workers", {"backups": 1}),
        ("sync-switch", ELASTIC),
    ],
)
def test_what_workers_do_is_what_the_machine_has_them_do(name, parameters):
    """After every event: who computes, who waits, clocks and leads are those of the machine's own
    roster.
    """
    workers = [f"a-{number}#1" for number in range(3)] + [SLOW]
    churn = [
        Left(at=10.5, worker="a-0#1"),
        Joined(at=14.0, worker="a-0#2"),
        Left(at=20.5, worker="a-1#1"),
    ]
    status, ever_suspended = RunStatus(Measures(120 * SAMPLES)), False
    for machine, entry in driven(name, 100, churn, workers, 120 * SAMPLES, **parameters):
        status.feed(entry)
        roster, rows = machine.roster, {row.worker: row for row in status.rows()}
        there = {worker: row for worker, row in rows.items() if row.clock is not None}
        computing = {*roster.computing, *roster.outdated}
        assert {
            worker: (re.search("(computing|waiting) for ", row.state)[1], row.clock, row.lead)
            for worker, row in there.items()
        } == {
            worker: (
                "computing" if worker in computing else "waiting",
                member.clock,
                roster.lead(worker) if worker in roster.members else None,
            )
            for worker, member in roster.live.items()
        }
        if isinstance(entry.event, Pushed) and entry.event.worker in roster.held:
            why = machine.paradigm.explain(roster, entry.event.worker)
            assert rows[entry.event.worker].state.endswith(why)
        suspended = {worker for worker, row in rows.items() if row.state.startswith("suspended, ")}
        assert suspended == set(roster.suspended)
        ever_suspended = ever_suspended or bool(suspended)
    assert ever_suspended == (name == "sync-switch")
    assert len(rows) == 4, "one a slot"
    assert rows["a-1#1"].state == Telling("20.50 s: its actor died")
    assert status.phase == {"sync-switch": "asp"}.get(name, "")
    measured = status.measures
    assert sum(row.pushes for row in rows.values()) == sum(
        one.pushes for worker, one in measured.workers.items() if worker in rows
    )


def test_waits_under_way_and_staleness_by_hand():
    """BSP, steps of 1 and 3 s, at 5.5 s: of that the fast worker has waited from 1 to 3 and from 4
    on.
    """
    status = standing_of([*lines_of("bsp", 3), Entry(Joined(at=5.5, worker="late-0#1"), ())])
    waits = {row.worker: row.wait_fraction for row in status.rows()}
    assert waits == {FAST: pytest.approx(3.5 / 5.5), SLOW: 0.0, "late-0#1": 0.0}
    assert status.measures.wait_fraction == pytest.approx(3.5 / 11.0)
    buffered = standing_of(lines_of("k-batch-async", 3, k=9))
    assert {row.wait_fraction for row in buffered.rows()} == {0.0}, (
        "they went on at once; their pushes wait, not they"
    )
    rows = {row.worker: row for row in standing_of(lines_of("asp", 8)).rows()}
    assert (rows[SLOW].staleness_mean, rows[SLOW].staleness_max) == (2.5, 3)
    assert rows[FAST].staleness_max == 1


def test_what_comes_with_the_pushes_does_not_displace_what_is_rare():
    left = Left(at=4.5, worker="b-0#1")
    lines = lines_of("ssp", 69, [left], (FAST, SLOW, "b-0#1"), staleness=0)
    status = standing_of(lines, workload=10**6)
    assert "left" in [news.kind for news in status.events]
    assert [each for each in told(lines) if each in status.events] == status.events
    assert len(status.events) <= RARE + FREQUENT


def test_of_what_is_frequent_the_latest_of_each_kind_and_worker_is_kept():
    workers = [f"w-{number}#1" for number in [*range(FREQUENT), 0, FREQUENT]]
    others = joins(*(f"x-{number}#1" for number in range(len(workers))))
    holds = [(Hold(worker, "slow"),) for worker in workers]
    joined = [Entry(event, ()) for event in joins(*dict.fromkeys(workers))]
    status = standing_of([*joined, *map(Entry, others, holds)])
    assert [news.worker for news in status.events] == workers[2:]


@pytest.mark.parametrize("name", ["bsp", "lagtuner", "k-batch-async"])
def test_memory_does_not_grow_with_the_journal(name):
    parameters = {"k": 2} if name == "k-batch-async" else {}
    sizes = []
    status = RunStatus(Measures(10**6))
    for count, (_, entry) in enumerate(driven(name, 2000, **parameters)):
        status.feed(entry)
        if count in (200, 2000):
            assert status.measures.workers, "all rows up to here are in the totals"
            sizes.append(len(pickle.dumps(status)))
    assert sizes[1] < 1.1 * sizes[0]


# ---- what is seen ----


@pytest.fixture
def record(tmp_path):
    """A record, and what goes on writing it."""

    def record(name="run", lines=(), done=False):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        experiment = config.validate({"paradigm": "ssp"})
        about = {"paradigm": "ssp", "model": "mlp", "dataset": "digits", "workers": 2}
        writer = RecordWriter(
            folder,
            experiment.to_yaml(),
            make("ssp"),
            Measures(20 * SAMPLES),
            about | {"engine": "ray"},
            datetime.now(),
        )
        writer.write(lines)
        if done:
            writer.close()
        return writer

    return record


def watched(folder, *, terminal=False, sleep=None, silent_s=0.0, once=False):
    """What `raysync watch` prints."""

    def never(_):
        raise AssertionError("waited for a run that will write no more")

    size = {"width": 150, "height": 40, "force_terminal": terminal, "_environ": {}}
    shown = VisibleConsole(file=io.StringIO(), emoji=False, **size)
    record = load(folder)
    with JournalTail(folder / "journal.jsonl") as journal:
        wrote = (folder / "journal.jsonl").stat().st_mtime
        Watcher(record, journal, shown, sleep or never, lambda: wrote + silent_s).run(once=once)
    return shown.file.getvalue()


def unpadded(text):
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_a_finished_run_is_shown_once(record, monkeypatch, snapshot):
    writer = record(lines=[*lines_of("ssp", 20), SCORE, Ended("finished", 12.5)], done=True)
    text = watched(writer.folder)
    assert unpadded(text) == snapshot
    assert watched(writer.folder, once=True) in text
    monkeypatch.setattr(watch, "LINES", 4)
    assert watched(writer.folder).endswith(watched(writer.folder, once=True)), (
        "a long journal is read without a pause"
    )


def test_a_run_is_followed_to_its_end(record, monkeypatch, snapshot):
    """On a terminal and without one; what waits between two looks is where the run goes on here."""
    monkeypatch.setattr(progress_lines, "SHOW_EVERY_S", 60)  # the machine may be slow
    for terminal in (True, False):
        writer = record(f"run-{terminal}", lines=lines_of("ssp", 4))
        rest = iter(
            [
                lines_of("ssp", 30, staleness=3)[6:13],
                [],
                [SCORE],
                [Entry(Left(at=30.0, worker=SLOW), (), Report(why="no answer for 1 s"))],
                [Ended("stopped", 31.0)],
            ]
        )
        text = watched(
            writer.folder,
            terminal=terminal,
            sleep=lambda _, rest=rest, writer=writer: writer.write(next(rest)),
        )
        assert next(rest, None) is None, "it was followed to its end, and no further"
        assert "stopped after" in text
        assert "gone after 30.00 s: no answer for 1 s" in text
        if not terminal:
            assert unpadded(text) == snapshot
        writer.close()


def test_a_killed_run_says_for_how_long_nothing_was_written(record):
    writer = record(lines=lines_of("ssp", 4))
    assert "No output" not in (text := watched(writer.folder, once=True))
    assert "s left" in text
    quiet = watched(writer.folder, once=True, silent_s=65)
    assert "No output for 65 s.\n" in quiet.replace(" \n", "\n")
    assert "s left" not in quiet
    assert tells(watched(writer.folder, silent_s=7200), "killed"), "nobody waits for that one"
    where = json.loads((writer.folder / "environment.json").read_text())
    assert (where["pid"], where["host"]) == (os.getpid(), platform.node())
    gone = subprocess.Popen(["true"])
    gone.wait()
    (writer.folder / "environment.json").write_text(json.dumps(where | {"pid": gone.pid}))
    assert tells(watched(writer.folder, silent_s=1.0), "1 s: process")
    (writer.folder / "environment.json").write_text(
        json.dumps(where | {"pid": gone.pid, "host": "elsewhere"})
    )
    assert "No output" not in watched(writer.folder, once=True, silent_s=1.0), (
        "its process is not for this machine to know"
    )
    text = watched(
        writer.folder, silent_s=65, sleep=lambda _: writer.write([Ended("stopped", 9.0)])
    )
    assert text.count("No output") == 1, "said while it is quiet, with how it stands"
    assert text.count("lead at most") == 2
    assert "No output" not in watched(writer.folder, silent_s=7200)
    writer.close()


def test_a_long_journal_is_read_to_its_end_before_anything_is_said_of_its_writer(
    record, monkeypatch
):
    writer = record(lines=[*lines_of("ssp", 20), Ended("finished", 12.5)], done=False)
    monkeypatch.setattr(watch, "is_writer_gone", lambda _: True)
    monkeypatch.setattr(watch, "LINES", 4)
    text = watched(writer.folder, terminal=True, silent_s=7200)
    assert "No output" not in text
    assert re.search(r"Still loading: \d\d% of the journal read", text)
    assert "Still loading" not in text.rpartition("finished after")[0].rpartition("ssp │")[2]


def test_a_place_that_is_lost_for_a_while(record, monkeypatch):
    """Behind a URI: the last picture stays, and says so, until it can be reached again."""
    writer = record(lines=lines_of("ssp", 4))
    behind = newest(f"file://{writer.folder}").path
    pulls = iter([ConfigError("s3://gone: cannot be reached."), None])

    def pull(folder, **_):
        failure = next(pulls)
        if failure:
            raise failure
        writer.write([Ended("stopped", 9.0)])
        storage.download(folder)

    monkeypatch.setattr(watch, "download", pull)
    text = watched(behind, sleep=lambda _: None)
    assert "s3://gone: cannot be reached. Trying again.\n" in text.replace(" \n", "\n")
    assert "stopped after" in text.rpartition("Trying again")[2]
    writer.close()
    clean()


def test_a_run_that_has_not_begun_to_write(record):
    writer = record()
    (writer.folder / "journal.jsonl").write_text("")
    assert "has written nothing yet" in watched(writer.folder, once=True)


def test_more_workers_than_fit(record):
    workers = [f"a-{number}#1" for number in range(30)]
    status = standing_of(lines_of("bsp", 40, workers=workers), workload=10**6)
    for height in (20, 24, 60):
        shown = Console(file=io.StringIO(), width=80)
        shown.print(RunView(status, "bsp", {}, "Nothing.", height))
        text = shown.file.getvalue()
        seen = [line.split()[0] for line in text.splitlines() if line.startswith(" a-")]
        assert len(text.splitlines()) <= height
        assert seen == [f"a-{number}#1" for number in range(len(seen))]
        if height < 60:
            assert f"{30 - len(seen)} more" in text
            assert " all: 10 waiting, " in text
            assert text.rstrip().endswith("…"), "the last news, cut where the line ends"
        else:
            assert len(seen) == 30


def drawn(status, about, width, height=None):
    shown = Console(file=io.StringIO(), width=width)
    shown.print(RunView(status, "sync-switch(first=bsp, then=ssp(staleness=3))", about, "", height))
    return [line.rstrip() for line in shown.file.getvalue().splitlines()]


def test_the_picture_fits_itself_to_the_terminal(snapshot):
    """Lines end between two facts; what a worker does, and why, is there on a narrow
    terminal, too.
    """
    workers = [f"a-{number}#1" for number in range(4)]
    status = standing_of([*lines_of("bsp", 41, workers=workers), SCORE], workload=10**6)
    about = {"model": "mlp", "dataset": "digits", "workers": 4, "seed": 0, "engine": "virtual"}

    def facts(lines):
        return [fact.strip("━ ") for line in lines for fact in line.split(" │ ")]

    for width in (80, 100, 150):
        head = facts(drawn(status, about, width)[:6])
        assert {*facts(drawn(status, about, 400)[:3])} <= {*head}
        assert head.count("seed 0") == 1
    low = drawn(status, about, 80, 17)
    assert len(low) <= 17
    narrow, wide = drawn(status, about, 40), drawn(status, about, 100)
    assert "\n".join(line for lines in (low, narrow, wide) for line in lines) == snapshot


def test_a_decoupled_run_in_time_only(tmp_path):
    run = {
        "engine": "virtual",
        "timing": "only",
        "workers": [{"count": 4, "step_s": 0.1}],
        "workload": {"samples": 640},
        "paradigm": {"name": "decoupled", "modules": 2, "groups": 2},
        "output": str(tmp_path / "runs"),
    }
    text = watched(raysync.run(run).path)
    assert "decoupled(modules=2, groups=2) │ mlp on digits" in text
    assert sum("done after" in line for line in text.splitlines() if line.startswith(" m")) == 4
    assert "accuracy" not in text
    assert "gone" not in text, "who has no batch left is no loss"
    assert "s left" not in text, "a virtual second is nothing to wait for"


def test_the_newest_of_several(record, tmp_path):
    for age_s, name in ((50, "a"), (10, "b"), (90, "c/d")):
        writer = record(name)
        began = (writer.folder / "config.yaml").stat().st_mtime - age_s
        os.utime(writer.folder / "config.yaml", (began, began))
        writer.close()
    assert newest(tmp_path / "runs").path.name == "b"
    assert newest(tmp_path / "runs" / "c").path.name == "d"


def test_a_record_behind_a_uri_is_followed_by_its_copies(record, tmp_path):
    writer = record("20261121-2", lines=lines_of("ssp", 4))
    record("20261121-1", lines=lines_of("ssp", 8), done=True)
    (tmp_path / "runs/summary").mkdir()
    behind = newest(f"file://{tmp_path}/runs").path
    assert newest(f"file://{writer.folder}").path != behind, "each is a copy"
    assert newest(f"file://{tmp_path}").path.name == "20261121-2", "at any depth, as in a folder"
    assert "s left" in watched(behind, once=True, silent_s=QUIET_S + 1), "copies come now and then"
    assert "No output" in watched(behind, once=True, silent_s=QUIET_S + 2 * COPY_EVERY_S + 1)
    rest = iter([[], lines_of("ssp", 30, staleness=3)[6:13], [Ended("stopped", 31.0)]])
    text = watched(behind, sleep=lambda _: writer.write(next(rest)))
    assert next(rest, None) is None
    assert "stopped after" in text
    writer.close()
    clean()


def test_damage_is_named(call, record, monkeypatch):
    writer = record(lines=[*lines_of("ssp", 20), Ended("finished", 12.5)], done=True)
    journal, environment = writer.folder / "journal.jsonl", writer.folder / "environment.json"
    good = journal.read_text().splitlines(keepends=True)
    environment.unlink()
    assert call("watch", str(writer.folder))[0] == 0
    for lines, says in (
        ([*good[:5], good[5][:40] + "\n", *good[6:]], "journal"),
        ([*good[:2], *good[3:]], "journal damaged"),
        ([good[0].replace("workload_samples", "x"), *good[1:]], "header journal"),
        ([good[0].replace('"journal":1', '"journal":9'), *good[1:]], "schema 9"),
        (["\udcff no journal\n"], "journal"),
    ):
        journal.write_text("".join(lines), errors="surrogateescape")
        code, out, err = call("watch", "--once", str(writer.folder))
        assert (code, out) == (2, "")
        assert tells(err, f"{writer.folder}: {says}")
        assert len(err.strip().splitlines()) <= 2

    def gone(place):
        raise PermissionError(13, "Permission denied", place)

    monkeypatch.setattr(watch, "newest", gone)
    code, out, err = call("watch", "mine")
    assert (code, out, tells(err, "mine: Permission denied")) == (2, "", True)


def test_the_command(call, record):
    writer = record(lines=[*lines_of("ssp", 20), Ended("finished", 12.5)], done=True)
    code, out, _ = call("watch", str(writer.folder.parent))
    assert (code, "finished after 12.50 s" in out) == (0, True)
