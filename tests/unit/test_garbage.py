"""Python looks for garbage less often during a run in virtual time, and as before after it."""

import gc

import pytest

from raysync import config
from raysync.training.preparation import prepare
from raysync.virtual.engine import GARBAGE_OBJECTS, VirtualEngine

SETTINGS = {
    "engine": "virtual",
    "timing": "only",
    "workload": {"iterations_per_worker": 500},
    "workers": [{"count": 2, "step_s": 1.0}],
}


@pytest.mark.parametrize("ends", [True, False], ids=["to its end", "given up"])
def test_the_thresholds_are_those_of_before(ends):
    before, training = gc.get_threshold(), prepare(config.validate(SETTINGS))
    reports = VirtualEngine().run(training, training.experiment.paradigm.make())
    next(reports)
    assert gc.get_threshold() == (GARBAGE_OBJECTS, *before[1:])
    if ends:
        list(reports)
    else:
        reports.close()
    assert gc.get_threshold() == before
