"""Ray Tune's place, taken by trials in this process."""

from types import SimpleNamespace

from ray import cloudpickle

from raysync.running.run import run_in
from raysync.training.preparation import prepare
from raysync.tuning.progress import SweepProgress
from raysync.tuning.trial import folder_of
from raysync.virtual.engine import VirtualEngine


class FakeTrial(SimpleNamespace):
    """A trial as Tune's callbacks get it; its name is that which `folder_of` gives."""

    def __init__(self, config, trial_id="", pickled_error_file=None):
        super().__init__(config=config, trial_id=trial_id, pickled_error_file=pickled_error_file)

    def __str__(self):
        return folder_of(self)


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
                    resume_from=self.plan.trials.resume_from(training),
                )
            except Exception as error:
                failed += 1
                trial.pickled_error_file.write_bytes(cloudpickle.dumps(error))
                callback.on_trial_error(0, [], trial)
            else:
                callback.on_trial_complete(0, [], trial)
            callback._show(SweepProgress(0, done, failed, done))
