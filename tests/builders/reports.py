"""What the tests of reports share beside their fixtures."""

import json
import os
from functools import cache
from pathlib import Path

import pandas as pd

from raysync import config
from raysync.core.journal import JOURNAL_SCHEMA
from raysync.core.metrics import ACCURACY, PERPLEXITY
from raysync.record.run_end import end_in
from raysync.results.collection import CollectedRun, Collection, FailedTrial
from tests.builders.files import edit

PARADIGMS = ({"name": "bsp"}, {"name": "asp"}, {"name": "lagtuner", "bound": "hard"})
LABELS = ("bsp", "asp", "lagtuner(bound=hard)")
LEARNING_RATES = (0.05, 0.2)
SEEDS = (0, 1, 2)
DIVERGED, LOST = 18, 19
"""Trials of the sweep beside the grid: one that diverged, one that left no record."""
TARGET = {"metric": "accuracy", "at_least": 0.9}

BASE = {
    "name": "tiny",
    "engine": "virtual",
    "model": {"name": "mlp", "hidden": [16]},
    "data": "digits",
    "batch_size": 16,
    "workload": {"samples": 1600},
    "evaluation": {"marks": 10},
    "target": {"metric": "accuracy", "at_least": 0.6},
    "workers": [
        {"name": "fast", "count": 2, "step_s": 0.02, "jitter": {"sigma": 0.1}},
        {"name": "slow", "step_s": 0.02, "speed": 0.5, "jitter": {"sigma": 0.1}},
    ],
    "network": {"link": {"latency_s": 0.001}, "update_s": 0.0005},
}


@cache
def validated(settings):
    return config.validate(json.loads(settings))


class StandIn:
    """A record without files: what collection, statistics, tables and answers look at."""

    def __init__(self, settings, summary, path):
        self.config = validated(json.dumps(settings))
        primary = PERPLEXITY if summary.get("tokens") else ACCURACY
        self.summary = {
            "status": "finished",
            "parameters": 10,
            "profile": None,
            "metric": primary.name,
            "metric_mode": primary.mode,
        } | summary
        self.environment = {
            "packages": {"raysync": "0"},
            "python": "3",
            "platform": "here",
            "started": "2026-01-02T03:04",
        }
        self.evaluations = pd.DataFrame(columns=["progress", "at", "accuracy"])
        self.pushes = pd.DataFrame({"released_at_s": [0.0]})
        self.path = path
        self.ended = True
        self.end = end_in({"samples": 1} | self.summary, 1)


def made_up(results, scenario="", **settings):
    """A collection of made-up numbers: `made_up({"bsp": [{...}, ...]}, **settings)`, a summary a
    seed; None: lost a trial.
    """
    folder, runs, failed = Path("made-up"), [], []
    for paradigm, summaries in results.items():
        for seed, summary in enumerate(summaries):
            if summary is None:
                failed.append(FailedTrial(99, scenario, paradigm, seed, "broke"))
            else:
                of_run = {"engine": "virtual", "target": TARGET, "seed": seed} | settings
                record = StandIn(of_run, summary, folder / f"{paradigm}-{seed}")
                runs.append(CollectedRun(record, paradigm, seed, scenario))
    return Collection((folder,), tuple(runs), tuple(failed))


def newer(folder):
    """The folder's journals as a raysync of the next schema would begin them."""
    for journal in folder.glob("*/journal.jsonl"):
        edit(journal, journal=JOURNAL_SCHEMA + 1)


def killed(folder, rest="", pid=2**30):
    """The record as a process leaves it that is killed before the last line, or with its rest."""
    (folder / "summary.json").unlink()
    journal = folder / "journal.jsonl"
    text, ended, _ = journal.read_text().rpartition('{"type":"Ended"')
    assert ended
    journal.write_text(text + rest)
    edit(folder / "environment.json", pid=pid)
    return folder


def cut(path, share=0.5):
    """Keep only the beginning of a file."""
    os.truncate(path, int(path.stat().st_size * share))


def kill(record, share=0.8):
    """Leave of a record what a run that is killed leaves."""
    for name in ("summary.json", "evaluations.parquet", "pushes.parquet"):
        (record / name).unlink()
    cut(record / "journal.jsonl", share)
