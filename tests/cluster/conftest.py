"""One actor group for all that train on Ray: see `tests.builders.cluster.TINY`."""

import pytest

from raysync import config
from raysync.cluster.session import Session
from raysync.running.run import run_in
from raysync.training.preparation import prepare
from tests.builders.cluster import TINY


@pytest.fixture(scope="session")
def session(ray_cluster):
    """The session of all runs whose workers are those of `TINY` or `UNEQUAL`: they keep the actors,
    unless a test breaks one. Then the next run starts others.
    """
    with Session() as session:
        yield session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """What a test that fails may have broken is not left to the next."""
    report = yield
    if report.failed and "session" in getattr(item, "funcargs", ()):
        item.funcargs["session"].close()
    return report


@pytest.fixture
def run(session, tmp_path):
    """Train `TINY` with other settings in the session; returns the record.

    Args:
        model: an object in place of the experiment's model, or a name or settings of one.
        data: an object in place of its data set, or settings of one.
        given: a task, in place of both.
        strikes: progress -> what is called, once, with the actor group at that progress.
        notify, watch, callbacks: as those of `raysync.run`.
        settings: of the experiment.
    """

    def run(
        model=None,
        data=None,
        strikes=(),
        notify=lambda text: None,
        watch=None,
        given=None,
        callbacks=(),
        **settings,
    ):
        def struck(measures):
            if watch is not None:
                watch(measures)
            for progress in [each for each in pending if each <= measures.progress]:
                pending.pop(progress)(session._actor_group)

        pending = dict(strikes)
        if isinstance(model, dict):
            model, settings = None, settings | {"model": model}
        if isinstance(data, dict):
            data, settings = None, settings | {"data": data}
        experiment = config.validate(TINY | {"output": str(tmp_path)} | settings)
        record = run_in(
            session,
            prepare(experiment, model, data, given),
            experiment.paradigm,
            watch=struck,
            notify=notify,
            callbacks=callbacks,
        )
        assert not pending, "a strike came too late"
        return record

    return run
