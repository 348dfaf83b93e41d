"""A search for the switch point under Ray Tune. Going on: tests/unit/test_switch_command.py."""

from pathlib import Path

import pytest
import yaml

import raysync
from raysync import config
from raysync.record.sweeps import load_sweep
from raysync.tuning.switch_trials import plan, run
from tests.builders.cluster import TINY, UNEQUAL

pytestmark = pytest.mark.ray

SEARCH = {
    **TINY,
    "engine": "virtual",
    "workers": UNEQUAL,
    "paradigm": "sync-switch",
    "switch_search": {
        "target": "best_accuracy",
        "threshold": 0.9,
        "first_repeats": 2,
        "candidate_repeats": 1,
        "candidates_max": 2,
    },
}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_search(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text(yaml.safe_dump(SEARCH), encoding="utf-8")
    made, stages = plan(Path("search.yaml")), []
    found = run(
        made,
        notify=print,
        begin=lambda what, count: stages.append((what, count)),
        show=lambda status: None,
    )
    folder = made.trials.folder
    assert stages == [("fraction 1, 0.5", 3), ("fraction 0.25", 1)]
    assert found.fraction == 0.25
    table = load_sweep(folder).table
    assert list(zip(table["config/paradigm.fraction"], table["config/seed"], strict=True)) == [
        (0.25, 0),
        (0.5, 0),
        (1, 0),
        (1, 1),
    ]
    assert [run.value for run in found.first.trainings] == list(table.best_accuracy[2:])
    assert [one.seconds for one in reversed(found.candidates)] == list(table.seconds[:2])
    assert table.seconds[0] < table.seconds[1] < table.seconds[2], "ASP waits for nobody"

    record = raysync.run(config.load(folder / "chosen.yaml"))
    assert record.summary["best_accuracy"] == found.answer.value
    assert record.summary["seconds"] == found.answer.seconds
