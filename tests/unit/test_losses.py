"""Losses in journals of this version and earlier ones, and behind a checkpoint; and in the table
of a terminal.
"""

from datetime import datetime

from raysync import config
from raysync.cli import table
from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Left
from raysync.core.journal import Checkpointed, Ended, Entry, Remark, Report
from raysync.core.metrics import ACCURACY
from raysync.paradigms import make
from raysync.record.measures import Measures
from raysync.record.reader import load
from raysync.record.writer import RecordWriter
from tests.builders.journals import SLOW, journal


def left(report, at=4.0):
    return Entry(Left(at=at, worker=SLOW), (), report)


def test_what_the_lines_behind_a_checkpoint_told_of_losses_is_still_counted(tmp_path):
    lines = journal("asp", 4)
    at = lines[-1].event.at
    cut = Checkpoint(1, at, {}, {})
    with RecordWriter(
        tmp_path, "seed: 1", make("asp"), Measures(960), {}, datetime.now()
    ) as writer:
        writer.write([*lines, Checkpointed(at, 1)])
        writer.write_checkpoint(cut)
        writer.write(
            [
                Remark(at + 1, "a server is back", lost="server", away_s=0.5),
                left(Report(planned=False, restart_in_s=1.0), at + 2),
            ]
        )
        writer.resume(cut)
        writer.write([Remark(at + 1, "an evaluator", lost="evaluator")])
        writer.resume(cut)
        writer.write([left(Report(planned=True), at + 1), Ended("stopped", 20.0)])
    summary = load(tmp_path).summary
    keys = "lost_workers", "worker_away_s", "lost_servers", "server_away_s", "lost_evaluators"
    assert [summary[key] for key in keys] == [1, 0.0, 1, 0.0, 1]


def row(seconds, **more):
    return {"status": "finished", "seconds": seconds} | more


def test_the_terminal_shows_losses_where_there_are_any(capsys):
    experiment = config.validate({"engine": "virtual", "timing": "only"})
    unhurt, hurt = row(6.5, lost_workers=0), row(7.25, lost_workers=1, worker_away_s=1.5)
    old = row(8.5)
    for rows, head in (
        ({"bsp": [unhurt, unhurt]}, False),
        ({"bsp": [old, unhurt]}, False),
        ({"bsp": [unhurt, hurt], "asp": [old, None]}, True),
    ):
        table.print_table(rows, experiment, [0, 1], ACCURACY)
        shown = capsys.readouterr().out
        assert ("lost" in shown.partition("asp")[0].split()) is head
        table.print_losses(rows, [0, 1])
        said = capsys.readouterr().out.splitlines()
        assert len(said) == head
        assert all("bsp, seed 1" in text and "7.25 s" in text for text in said)
