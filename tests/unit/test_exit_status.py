"""One rule for exit statuses: 0 for results, 1 where a run broke, 2 for a mistake, 130 for Ctrl-C.

A sweep's trials run here in this process, one after another, in place of Ray Tune's.
"""

import json
from pathlib import Path

import pytest
import yaml
from torch import nn

from raysync.tuning import sweep_run
from tests.builders.files import write
from tests.builders.messages import tells
from tests.fakes.tuner import InThisProcess

TINY = {
    "name": "tiny",
    "engine": "virtual",
    "data": {"name": "digits", "train_samples": 160, "test_samples": 50},
    "batch_size": 8,
    "workload": {"samples": 160},
    "workers": [{"count": 2, "step_s": 0.1}],
    "evaluation": {"marks": 1},
    "paradigms": ["bsp", "asp"],
}


class Breaks(nn.Linear):
    """Breaks after some steps."""

    steps = 0

    def forward(self, x):
        self.steps += self.training
        if self.steps > 5:
            raise ZeroDivisionError("it broke")
        return super().forward(x.flatten(1))


def breaks():
    return Breaks(64, 10)


RESULT, DIVERGES = {}, {"update": {"lr": 1e30}}
FAILS = {"model": f"{__name__}:breaks"}
MISTAKE = {"model": "convnet", "data": {"name": "synthetic", "parameters": {"shape": [3]}}}


@pytest.fixture
def ends(call, tmp_path, monkeypatch):
    """A command with an experiment file: its status and its output."""
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    monkeypatch.setattr(sweep_run.Connection, "open", lambda *_: None)
    monkeypatch.setattr(
        sweep_run, "_tuner", lambda plan, callback, verbose: InThisProcess(plan, callback, tmp_path)
    )
    monkeypatch.setattr(InThisProcess, "last", InThisProcess.last)

    def ends(command, settings, *arguments):
        write(Path("x.yaml"), yaml.safe_dump(TINY | settings))
        return call(command, "x.yaml", *arguments)

    return ends


def swept(**grid):
    return {"sweep": {"grid": grid}}


@pytest.mark.parametrize(
    ("settings", "status"), [(RESULT, 0), (DIVERGES, 0), (FAILS, 1), (MISTAKE, 2)]
)
@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_all_commands_agree(ends, command, settings, status):
    code, out, err = ends(command, settings | swept(seed=[0, 1]))
    assert code == status, err
    assert ("diverged" in out) == (settings is DIVERGES)
    if settings is DIVERGES and command != "sweep":
        for file in Path("runs/tiny").glob("*/summary.json"):
            what_was_first = json.loads(file.read_text())["error"]
            assert what_was_first in " ".join(out.split())
    if settings is FAILS:
        assert "it broke" in err
    if settings is MISTAKE:
        assert tells(err.splitlines()[-1], "raysync: model convnet: (3,)")


@pytest.mark.parametrize("other", [FAILS["model"], "convnet"])
def test_one_trial_that_breaks_or_cannot_begin_among_results_is_a_failure(ends, other):
    settings = {
        "data": TINY["data"] | {"name": "synthetic", "parameters": {"shape": [64]}}
    } | swept(model=["mlp", other])
    code, out, err = ends("sweep", settings)
    assert code == 1, err
    assert "2 trials: 1 done, 1 failed." in out
    status, _, _ = ends("sweep", settings, "--resume", "runs/tiny")
    assert status == (2 if other == "convnet" else 1), "what is left is that one alone"


def test_an_interrupted_sweep_and_the_rest_of_it_count_the_same_trials(ends):
    InThisProcess.last = 2
    settings = swept(seed=list(range(4)))
    code, _, err = ends("sweep", settings)
    assert code == 130
    assert tells(err, "2 0 running 0 4")
    InThisProcess.last = 10**9
    code, out, err = ends("sweep", settings, "--resume", "runs/tiny")
    assert code == 0
    assert [line for line in err.splitlines() if " of 4" in line] == [
        f"{done} done, 0 running, 0 failed of 4" for done in (3, 4)
    ]
    assert "4 trials: 4 done." in out
