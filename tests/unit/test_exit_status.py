"""One rule for exit statuses: 0 for results, 1 where a run broke, 2 for a mistake, 130 for Ctrl-C.

A sweep's trials run here in this process, one after another, in place of Ray Tune's.
"""

import json
import sys
from pathlib import Path

import pytest
import yaml

from raysync import cli
from raysync.tuning import sweep_run
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
BREAKS = """
from torch import nn

class Breaks(nn.Linear):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        if self.steps > 5:
            raise ZeroDivisionError("it broke")
        return super().forward(x.flatten(1))

def model():
    return Breaks(64, 10)
"""
RESULT, DIVERGES = {}, {"update": {"lr": 1e30}}
FAILS = {"model": "breaks_after_some_steps:model"}
MISTAKE = {"model": "convnet", "data": {"name": "synthetic", "parameters": {"shape": [3]}}}


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    monkeypatch.setattr(sweep_run.Connection, "open", lambda *_: None)
    monkeypatch.setattr(
        sweep_run, "_tuner", lambda plan, callback, verbose: InThisProcess(plan, callback, tmp_path)
    )
    monkeypatch.setattr(InThisProcess, "last", InThisProcess.last)
    Path("breaks_after_some_steps.py").write_text(BREAKS)

    def call(command, settings, *arguments):
        Path("x.yaml").write_text(yaml.safe_dump(TINY | settings))
        monkeypatch.setattr(sys, "argv", ["raysync", command, "x.yaml", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return call


def swept(**grid):
    return {"sweep": {"grid": grid}}


@pytest.mark.parametrize(
    ("settings", "status"), [(RESULT, 0), (DIVERGES, 0), (FAILS, 1), (MISTAKE, 2)]
)
@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_all_commands_agree(call, command, settings, status):
    code, out, err = call(command, settings | swept(seed=[0, 1]))
    assert code == status, err
    assert ("diverged" in out) == (settings is DIVERGES)
    if settings is FAILS:
        assert "it broke" in err
    if settings is MISTAKE:
        assert tells(err.splitlines()[-1], "raysync: model convnet: (3,)")


@pytest.mark.parametrize("command", ["run", "compare"])
def test_what_was_not_finite_first_is_on_the_terminal(call, command):
    _, out, _ = call(command, DIVERGES)
    for file in Path("runs/tiny").glob("*/summary.json"):
        assert json.loads(file.read_text())["error"] in " ".join(out.split())


@pytest.mark.parametrize("other", [FAILS["model"], "convnet"])
def test_one_trial_that_breaks_or_cannot_begin_among_results_is_a_failure(call, other):
    settings = {
        "data": TINY["data"] | {"name": "synthetic", "parameters": {"shape": [64]}}
    } | swept(model=["mlp", other])
    code, out, err = call("sweep", settings)
    assert code == 1, err
    assert "2 trials: 1 done, 1 failed." in out
    status, _, _ = call("sweep", settings, "--resume", "runs/tiny")
    assert status == (2 if other == "convnet" else 1), "what is left is that one alone"


def test_an_interrupted_sweep_and_the_rest_of_it_count_the_same_trials(call):
    InThisProcess.last = 3
    settings = swept(seed=list(range(5)))
    code, _, err = call("sweep", settings)
    assert code == 130
    assert tells(err, "3 0 running 0 5")
    InThisProcess.last = 10**9
    code, out, err = call("sweep", settings, "--resume", "runs/tiny")
    assert code == 0
    assert [line for line in err.splitlines() if " of 5" in line] == [
        f"{done} done, 0 running, 0 failed of 5" for done in (4, 5)
    ]
    assert "5 trials: 5 done." in out
