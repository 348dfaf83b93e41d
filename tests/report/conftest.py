"""Records to report on, made once by the virtual engine: real ones of a tiny model, and a sweep's
folder.
"""

import shutil

import pytest
import yaml

import raysync
from raysync.record.sweeps import RECORDS, TrialNote, trial_name, write_note, write_table
from raysync.results.collection import CollectedRun, Collection, FailedTrial, collect
from tests.builders.reports import (
    BASE,
    DIVERGED,
    LEARNING_RATES,
    LOST,
    PARADIGMS,
    SEEDS,
    TARGET,
    StandIn,
)
from tests.conftest import single_threaded


@pytest.fixture(scope="session")
def torch_of_one_thread():
    with single_threaded():
        yield


@pytest.fixture(scope="session")
def sweep_folder(tmp_path_factory, torch_of_one_thread):
    """Read-only: 3 paradigms x 2 learning rates x 3 seeds, then a trial that diverged and one that
    left no record.
    """
    folder = tmp_path_factory.mktemp("sweep")
    grid = {"update.lr": list(LEARNING_RATES), "paradigm": list(PARADIGMS), "seed": list(SEEDS)}
    (folder / "sweep.yaml").write_text(
        yaml.safe_dump(BASE | {"sweep": {"grid": grid}}, sort_keys=False)
    )
    points = [
        (lr, paradigm, seed) for lr in LEARNING_RATES for paradigm in PARADIGMS for seed in SEEDS
    ]
    points += [(LEARNING_RATES[1], {"name": "asp"}, 3), (LEARNING_RATES[1], {"name": "asp"}, 4)]
    for number, (lr, paradigm, seed) in enumerate(points):
        name = trial_name(number)
        settings = {
            "update.lr": lr,
            "paradigm": yaml.safe_dump(paradigm, default_flow_style=True).strip(),
            "seed": seed,
        }
        write_note(
            folder, TrialNote(name, settings, error="no place for it" if number == LOST else "")
        )
        if number != LOST:
            update = {"lr": 1e30, "momentum": 0.9} if number == DIVERGED else {"lr": lr}
            raysync.run(
                BASE
                | {
                    "name": name,
                    "output": str(folder / RECORDS),
                    "paradigm": paradigm,
                    "seed": seed,
                    "update": update,
                }
            )
    write_table(folder)
    return folder


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
    for seed in SEEDS[:2]:
        for paradigm in PARADIGMS:
            raysync.run(
                BASE
                | {
                    "name": "faultd",
                    "output": str(output),
                    "paradigm": paradigm,
                    "seed": seed,
                    "paradigms": list(PARADIGMS),
                    "faults": faults,
                }
            )
    return output / "faultd"


@pytest.fixture
def own_copy(runs_folder, tmp_path):
    """A folder of records that a test may damage."""
    return shutil.copytree(runs_folder, tmp_path / "runs")


@pytest.fixture
def made(tmp_path):
    """Collections of made-up numbers: `made({"bsp": [{...}, ...]}, **settings)`, a summary a seed;
    None: lost a trial.
    """

    def make(results, scenario="", **settings):
        runs, failed = [], []
        for paradigm, summaries in results.items():
            for seed, summary in enumerate(summaries):
                if summary is None:
                    failed.append(FailedTrial(99, scenario, paradigm, seed, "broke"))
                    continue
                of_run = {"engine": "virtual", "target": TARGET, "seed": seed} | settings
                runs.append(
                    CollectedRun(
                        StandIn(of_run, summary, tmp_path / f"{paradigm}-{seed}"),
                        paradigm,
                        seed,
                        scenario,
                    )
                )
        return Collection((tmp_path,), tuple(runs), tuple(failed))

    return make
