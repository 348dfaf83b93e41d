"""Ray Tune's place, taken by trials in this process."""

import shutil
from contextlib import suppress
from types import SimpleNamespace

from ray import cloudpickle, tune

from raysync.runner import run_in
from raysync.training.preparation import prepare
from raysync.tuning.progress import SweepProgress
from raysync.tuning.trial import folder_of, train
from raysync.virtual.engine import VirtualEngine


class FakeTrial(SimpleNamespace):
    """A trial as Tune's callbacks get it; its name is that which `folder_of` gives."""

    def __init__(self, config, trial_id="", pickled_error_file=None):
        super().__init__(config=config, trial_id=trial_id, pickled_error_file=pickled_error_file)

    def __str__(self):
        return folder_of(self)


class FakeTune:
    """Runs trials in this process as a scheduler does that pauses and clones them."""

    def __init__(self, monkeypatch, folder):
        self.reports, self.checkpoints = {}, {}
        """Trial -> what it has reported, and the checkpoints with it."""
        self._folder, self._left, self._trial, self._start = folder, 0, "", None
        for name in ("report", "get_checkpoint", "get_context"):
            monkeypatch.setattr(tune, name, getattr(self, f"_{name}"))

    def run(self, trials, point, checkpoint=None, reports=10**9):
        """Run a trial, from a checkpoint, for so many reports; then it is paused."""
        self._trial = folder_of(SimpleNamespace(config=point, trial_id=""))
        self._left, self._start = reports, checkpoint
        with suppress(SystemExit):
            train(point, trials)

    def _report(self, metrics, checkpoint=None):
        kept = self.checkpoints.setdefault(self._trial, [])
        if checkpoint is not None:
            there = self._folder / f"{self._trial}-{len(kept)}"
            with checkpoint.as_directory() as here:
                shutil.copytree(here, there)
            checkpoint = tune.Checkpoint.from_directory(there)
        kept.append(checkpoint)
        self.reports.setdefault(self._trial, []).append(metrics)
        self._left -= 1
        if not self._left:
            raise SystemExit

    def _get_checkpoint(self):
        return self._start

    def _get_context(self):
        return SimpleNamespace(get_trial_name=lambda: self._trial)


class InThisProcess:
    """Takes the place of `tune.Tuner`: runs a plan's points, or the first of them, as after
    Ctrl-C.
    """

    last = 10**9
    watch = staticmethod(lambda measures: None)

    def __init__(self, plan, callback, folder):
        self.plan, self.callback, self.folder = plan, callback, folder

    def fit(self):
        callback, failed = self.callback, 0
        for done, point in enumerate(self.plan.points[: self.last], start=1):
            trial = FakeTrial(point, pickled_error_file=self.folder / "error.pkl")
            callback.on_trial_start(0, [], trial)
            try:
                experiment = self.plan.trials.experiment(point, f"{point['trial']:05d}")
                training = prepare(experiment)
                run_in(
                    VirtualEngine(),
                    training,
                    experiment.paradigm,
                    watch=self.watch,
                    goes_on=self.plan.trials.goes_on(training),
                )
            except Exception as error:
                failed += 1
                trial.pickled_error_file.write_bytes(cloudpickle.dumps(error))
                callback.on_trial_error(0, [], trial)
            else:
                callback.on_trial_complete(0, [], trial)
            callback._show(SweepProgress(0, done, failed, done))
