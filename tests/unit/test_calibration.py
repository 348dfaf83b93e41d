"""What `raysync calibrate` measures is what the virtual engine means by it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysync import calibration, config
from raysync.calibration import Measured, calibrate, profile
from raysync.cli import listing, train
from raysync.errors import ConfigError
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine

LATENCY_S, BANDWIDTH, START_S = 0.02, 5e7, 3.5


class Known:
    """An engine whose links are known, and how long a process takes to start."""

    places, models, resumes_exactly = {}, (), False

    def run(self, training, paradigm, *_):
        network = config.Network(
            link=config.Link(latency_s=LATENCY_S, bandwidth_bytes_per_s=BANDWIDTH)
        )
        [worker] = training.experiment.workers
        workers = (worker.model_copy(update={"start_s": START_S}),)
        experiment = training.experiment.model_copy(update={"network": network, "workers": workers})
        return VirtualEngine().run(replace(training, experiment=experiment), paradigm)


def test_a_known_network_and_a_known_start_are_found(one_thread):
    """Within 10 %: the server's own time, which is subtracted, is measured on this machine."""
    found = calibrate(Known(), prepare(config.validate({"model": "mlp"})))
    assert found.latency_s == pytest.approx(LATENCY_S, rel=0.1)
    assert found.bandwidth_bytes_per_s == pytest.approx(BANDWIDTH, rel=0.1)
    assert found.start_s == pytest.approx(START_S)
    assert found.step_s > 0 < found.update_bytes_per_s
    assert found.flops_per_s * found.step_s == pytest.approx(
        prepare(config.validate({"model": "mlp", "workers": [{"name": "w", "flops_per_s": 1.0}]}))
        .groups["w-0"]
        .step_s
    )


@pytest.mark.parametrize(
    "update", [{"staleness_scaling": "inverse"}, {"delay_compensation": "adaptive"}]
)
def test_updates_that_look_at_old_weights_can_be_timed(monkeypatch, update):
    class Once:
        def __init__(self, statement, globals, num_threads):
            self.work = globals["once"]

        def blocked_autorange(self, min_run_time):
            self.work()
            return SimpleNamespace(median=1.0)

    monkeypatch.setattr(calibration, "Timer", Once)
    assert calibration._update_s(400, 3, config.Update(**update)) == 1.0


def test_a_profile_holds_the_workers_and_what_was_measured(tmp_path):
    """A group that says itself how long its step lasts keeps that; the others get the measured
    rate.
    """
    workers = [
        {"name": "said", "count": 2, "step_s": 0.1, "speed": 0.5, "jitter": {"sigma": 0.1}},
        {"name": "silent"},
        {"name": "quick", "start_s": 0.5},
    ]
    experiment = config.validate({"workers": workers})
    measured = Measured(
        step_s=0.01,
        flops_per_s=1.23456e9,
        latency_s=0.001,
        bandwidth_bytes_per_s=None,
        update_s=1e-4,
        update_bytes_per_s=2e9,
        start_s=4.321,
    )
    path = tmp_path / "here.yaml"
    path.write_text(profile(experiment, measured, "a test"))
    again = config.validate({"profile": str(path), "engine": "virtual"})
    assert again.workers[0] == experiment.workers[0].model_copy(update={"start_s": 4.32})
    assert again.workers[2].start_s == 0.5
    assert (again.workers[1].flops_per_s, again.workers[1].step_s) == (1.23e9, None)
    assert again.network == config.Network(
        link=config.Link(latency_s=0.001), update_s=1e-4, update_bytes_per_s=2e9
    )


@pytest.mark.parametrize(
    ("path", "says"),
    [("here.txt", "must end in .yaml"), ("nowhere/here.yaml", "there is no folder")],
)
def test_a_profile_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path, monkeypatch, path, says
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        train.calibrate(Path(path), None, [])


def test_clusters_are_listed_with_their_workers(capsys):
    listing.list_(listing.Kind.clusters, measure=False)
    shown = capsys.readouterr().out
    assert all(name in shown for name in config.profiles())
    assert "1 gtx1060 + 1" in shown
