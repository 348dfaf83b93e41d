"""Chaos on real processes: a worker, a server and the whole command are killed."""

import json
import sys

import pytest
import yaml

from tests.builders.cluster import TINY
from tests.chaos import __main__ as command
from tests.chaos.schedule import Strike

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.timeout(400)
def test_a_run_survives_the_loss_of_a_worker_a_server_and_its_command(tmp_path, monkeypatch):
    settings = {
        "workers": [{"name": "w", "count": 2, "step_s": 0.05}],
        "workload": {"samples": 4800},
        "checkpoint": {"every_s": 0.5},
        "cluster": {"address": "local", "restarts": {"backoff_s": 0.1}},
    }
    file, out = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(TINY | settings))
    strikes = [Strike(0.5, target, "kill", 0.3) for target in ("worker", "server", "driver")]
    monkeypatch.setattr(command, "schedule", lambda *_: strikes)
    monkeypatch.setattr(sys, "argv", ["chaos", str(file), "--out", str(out)])
    command.app(standalone_mode=False)
    result = json.loads((out / "chaos.json").read_text())
    assert set(result["oracles"].values()) == {"ok"}
    assert len(result["oracles"]) == 11
    assert {each["target"]: each["survived"] for each in result["targets"]} == {
        "worker": 1,
        "server": 1,
        "driver": 1,
    }
    assert result["figures"]["resumed"] >= 1


@pytest.mark.timeout(500)
def test_a_run_survives_the_loss_of_nodes_and_full_object_stores(tmp_path, monkeypatch):
    """Gradients of 300 KB, which go through the stores; the last node that is lost is another."""
    settings = {
        "model": {"name": "mlp", "hidden": [1024]},
        "workers": [{"name": "w", "count": 2, "step_s": 0.05, "cpus": 0.5}],
        "workload": {"samples": 4800},
        "checkpoint": {"every_s": 0.5},
        "cluster": {
            "server_cpus": 0.5,
            "evaluator_cpus": 0.5,
            "restarts": {"attempts": 20, "backoff_s": 0.1},
        },
    }
    file, out = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(TINY | settings))
    strikes = [
        Strike(1.0, target, "kill", choice)
        for target, choice in (("node", 0.1), ("store", 0.5), ("node", 0.9))
    ]
    monkeypatch.setattr(command, "schedule", lambda *_: strikes)
    arguments = [str(file), "--out", str(out), "--faults", "node,store"]
    monkeypatch.setattr(sys, "argv", ["chaos", *arguments])
    command.app(standalone_mode=False)
    result = json.loads((out / "chaos.json").read_text())
    assert set(result["oracles"].values()) == {"ok"}
    assert {each["target"]: each["faults"] for each in result["targets"]} == {"node": 2, "store": 1}
    assert result["lost_with_nodes"]
    assert result["pending"] == 0
