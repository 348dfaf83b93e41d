"""Checkpoints of trials in the hands of Ray Tune, whose schedulers pause, resume and clone trials.

Such a scheduler decides when a trial reports. So the trial takes a checkpoint as soon as an
evaluation has ended (`checkpoint.every_evaluation`), and reports the evaluation with it. What Tune
keeps is all that a trial on any node needs to go on from there:

    CHECKPOINT/trial.json       whose it is, and how many evaluations Tune has been told
    CHECKPOINT/record/          the trial's record up to the checkpoint: config.yaml,
                                environment.json, journal.jsonl
    CHECKPOINT/000007/          the checkpoint, as in the record

A trial that Tune starts with a checkpoint of its own goes on in its record. With that of another
trial, which it is to clone, it goes on in a new record, which begins as that of the other trial.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from ray import tune

from raysync.config import Experiment
from raysync.config.resume_changes import changes_between
from raysync.core.checkpoint import Checkpoint
from raysync.record.checkpoints import name_of, read_checkpoint
from raysync.record.journal_cut import copy_before, cuts_in
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord, load
from raysync.record.resumption import checkpoints_of
from raysync.record.storage import Location
from raysync.record.sweeps import newest_record
from raysync.record.writer import CONFIG, ENVIRONMENT, JOURNAL, STAMP, folder_name
from raysync.recovery import GoesOn
from raysync.tuning.trial_reports import report_of, report_of_evaluation

ABOUT, RECORD = "trial.json", "record"
PREFIX = "raysync-trial-"


@dataclass(frozen=True)
class About:
    """What Tune's checkpoint says of its trial: the contents of `trial.json`."""

    trial: str
    """The name of the trial's folder."""
    record: str
    """The name of the folder of its record."""
    number: int
    """The number of the checkpoint."""
    evaluations: int
    """The evaluations before the checkpoint."""
    reported: int
    """The evaluations of the run that Tune has been told: more than those only if it has ended."""
    ended: bool = False
    """Whether the run is over, so that the trial has nothing to do; its clone goes on from the last
    checkpoint."""


class SavedReports:
    """Reports each evaluation to Tune, with the checkpoint that was taken behind it; the last ones,
    of a run that is over, with its last checkpoint.
    """

    def __init__(
        self, experiment: Experiment, former: SavedTrial | None = None, record: str = ""
    ) -> None:
        """
        Args:
            experiment: that of the trial.
            former: what it goes on from; None: it begins, or Tune knows nothing of it.
            record: the name of the folder of the record that then goes on.
        """
        self._experiment = experiment
        self._reported = 0 if former is None else former.reported
        """How many evaluations of the run Tune has been told."""
        self._measures: Measures | None = None
        self._saved = None if former is None else former.copied_for(experiment.name, record)
        """The latest checkpoint, and what is said of it."""

    def watch(self, measures: Measures) -> None:
        """Take in how far the run is; see `run_in`."""
        self._measures = measures
        if measures.ended is not None:
            self._report(len(measures.evaluations))

    def saved(self, record: Path, checkpoint: Checkpoint) -> None:
        """Report the evaluations before a checkpoint that has been written; see `run_in`."""
        setting = self._experiment.checkpoint
        assert setting is not None, "a checkpoint of a run that takes none"
        folder = TemporaryDirectory(prefix=PREFIX)
        path = Path(folder.name)
        (path / RECORD).mkdir()
        for name in (CONFIG, ENVIRONMENT):
            shutil.copy2(record / name, path / RECORD / name)
        evaluations = copy_before(record / JOURNAL, path / RECORD / JOURNAL, checkpoint)
        number = name_of(checkpoint.number)
        shutil.copytree(checkpoints_of(record, setting.output) / number, path / number)
        name, reported = self._experiment.name, self._reported
        about = About(name, record.name, checkpoint.number, evaluations, reported)
        if self._saved is not None:
            self._saved[0].cleanup()
        self._saved = folder, about
        self._report(evaluations)

    def _report(self, until: int) -> None:
        """Report the evaluations up to that number of them."""
        measures = self._measures
        assert measures is not None, "a report of a run that has not begun"
        evaluations = measures.evaluations
        while self._reported < until:
            evaluation = evaluations[self._reported]
            self._reported += 1
            ended = measures.ended is not None and self._reported == len(evaluations)
            tune.report(
                report_of(measures) | report_of_evaluation(evaluation, measures),
                checkpoint=self._checkpoint(ended),
            )

    def _checkpoint(self, ended: bool) -> tune.Checkpoint | None:
        if self._saved is None:
            return None
        folder, about = self._saved
        about = replace(about, reported=self._reported, ended=ended)
        (Path(folder.name) / ABOUT).write_text(json.dumps(asdict(about)), encoding="utf-8")
        return tune.Checkpoint.from_directory(folder.name)


@dataclass(frozen=True)
class SavedTrial:
    """A checkpoint that Tune starts a trial with."""

    path: Path
    about: About

    def is_over(self, trial: str) -> bool:
        """Say whether that trial has nothing left to do."""
        return self.about.ended and self.about.trial == trial

    def copied_for(self, trial: str, record: str) -> tuple[TemporaryDirectory[str], About]:
        """Copy the checkpoint, for a trial that reports it again: Tune's own files stay as they
        are. The folder is removed with the object.
        """
        folder = TemporaryDirectory(prefix=PREFIX)
        shutil.copytree(self.path, folder.name, dirs_exist_ok=True)
        return folder, replace(self.about, trial=trial, record=record, ended=False)

    @property
    def reported(self) -> int:
        """The evaluations that a run which goes on from the checkpoint need not report."""
        return min(self.about.reported, self.about.evaluations)

    def goes_on(self, sweep: Location, experiment: Experiment) -> GoesOn:
        """Put a trial's record in place, and return where it goes on.

        Args:
            sweep: the folder of the sweep, or its URI.
            experiment: that of the trial.

        Raises:
            ConfigError: the checkpoint is damaged.
        """
        setting, name = experiment.checkpoint, name_of(self.about.number)
        assert setting is not None, "a checkpoint of a run that takes none"
        checkpoint = read_checkpoint(self.path / name)
        assert checkpoint is not None, f"{self.path} without its checkpoint"
        newest = newest_record(sweep, experiment.name)
        is_own = self.about.trial == experiment.name
        if is_own and newest is not None and newest.path.name == self.about.record:
            record, remark = newest, ""
            if cuts_in(record.path / JOURNAL).get(checkpoint.number) != checkpoint.at:
                shutil.copy2(self.path / RECORD / JOURNAL, record.path / JOURNAL)
        else:
            record = self._copied(experiment, newest)
            remark = self._origin(experiment)
        kept = checkpoints_of(record.path, setting.output) / name
        shutil.copytree(self.path / name, kept, dirs_exist_ok=True)
        return GoesOn(record, checkpoint, remark)

    def _copied(self, experiment: Experiment, newest: RunRecord | None) -> RunRecord:
        """Return a new record of a trial, which begins as that of the checkpoint."""
        began = datetime.now().replace(microsecond=0)
        if newest is not None:  # a later name, also where the two began in the same second
            stamp = "-".join(newest.path.name.split("-")[:2])
            began = max(began, datetime.strptime(stamp, STAMP) + timedelta(seconds=1))
        label = experiment.paradigm.label
        folder = folder_name(experiment.output, experiment.name, label, began)
        shutil.copytree(self.path / RECORD, folder)
        return load(folder, trust=True)

    def _origin(self, experiment: Experiment) -> str:
        """Say where a trial comes from, and which settings differ there."""
        before = load(self.path / RECORD, trust=True).config
        own = {"name": experiment.name, "output": experiment.output}
        changes = ", ".join(changes_between(before.model_copy(update=own), experiment))
        return (
            f"This trial goes on from checkpoint {self.about.number} of trial {self.about.trial}"
            f" ({self.about.record}){', with ' * bool(changes)}{changes}."
        )


@contextmanager
def saved_trial() -> Iterator[SavedTrial | None]:
    """Give the checkpoint that Tune has started this trial with; None: the trial begins."""
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        yield None
        return
    with checkpoint.as_directory() as folder:
        path = Path(folder)
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        yield SavedTrial(path, About(**about))
