"""Records to report on, made once by the virtual engine: real ones of a tiny model, and a sweep's
folder.
"""

import shutil

import pytest
import yaml

import raysync
from raysync.results.collection import collect
from tests.builders.command import caller
from tests.builders.reports import BASE, DIVERGED, LEARNING_RATES, LOST, PARADIGMS, SEEDS, made_up
from tests.builders.sweeps import Trial, write_sweep


@pytest.fixture
def call(monkeypatch, capsys):
    """The command line in this process: exit status, output, errors."""
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="session")
def sweep_folder(tmp_path_factory, torch_of_one_thread):
    """Read-only: 3 paradigms x 2 learning rates x 3 seeds, then a trial that diverged and one that
    left no record.
    """
    grid = {"update.lr": list(LEARNING_RATES), "paradigm": list(PARADIGMS), "seed": list(SEEDS)}

    def trial(lr, paradigm, seed, **more):
        text = yaml.safe_dump(paradigm, default_flow_style=True).strip()
        return Trial({"update.lr": lr, "paradigm": text, "seed": seed}, **more)

    trials = [
        trial(lr, paradigm, seed)
        for lr in LEARNING_RATES
        for paradigm in PARADIGMS
        for seed in SEEDS
    ]
    diverging = {"update.lr": 1e30, "update.momentum": 0.9}
    trials.insert(DIVERGED, trial(LEARNING_RATES[1], {"name": "asp"}, 3, settings=diverging))
    trials.insert(LOST, trial(LEARNING_RATES[1], {"name": "asp"}, 4, error="no place for it"))
    folder = tmp_path_factory.mktemp("sweep")
    return write_sweep(folder, BASE | {"sweep": {"grid": grid}}, trials)


@pytest.fixture(scope="session")
def sweep(sweep_folder):
    return collect([sweep_folder])


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory, torch_of_one_thread):
    """Read-only, as `raysync compare` leaves it: 3 paradigms x 2 seeds under faults; a worker
    crashes and comes back.
    """
    output = tmp_path_factory.mktemp("output")
    faults = [{"kind": "crash", "worker": "fast-1", "at_s": 0.2, "rejoin_after_s": 0.1}]
    settings = {"name": "faultd", "output": str(output), "faults": faults}
    for seed in SEEDS[:2]:
        for paradigm in PARADIGMS:
            row = {"paradigm": paradigm, "paradigms": list(PARADIGMS), "seed": seed}
            raysync.run(BASE | settings | row)
    return output / "faultd"


@pytest.fixture(scope="session")
def runs(runs_folder):
    return collect([runs_folder])


@pytest.fixture
def own_copy(runs_folder, tmp_path):
    """A folder of records that a test may damage."""
    return shutil.copytree(runs_folder, tmp_path / "runs")


@pytest.fixture
def own_record(own_copy):
    """One of them."""
    return min(own_copy.iterdir())


@pytest.fixture
def made():
    return made_up
