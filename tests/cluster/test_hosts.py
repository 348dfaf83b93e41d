"""Runs over real TCP between hosts of their own (network namespaces), whose links are cut."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]
FOLDER = Path(__file__).parents[2] / "experiments" / "network"
ITERATIONS = 12


@pytest.fixture
def faults(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import faults
    import hosts

    if reason := hosts.available():
        pytest.skip(reason)
    with hosts.ended_by_sigterm():
        yield faults


def test_a_round_waits_for_a_host_that_is_cut_off_for_a_while_and_loses_nothing(faults, tmp_path):
    with faults.RayHosts(5, faults.FAST, faults.CPUS) as hosts:
        whole = faults.run(hosts, None, "bsp", tmp_path / "whole", ITERATIONS)
        cut = faults.Fault(faults.WORKER, 5.0)
        found = faults.run(hosts, cut, "bsp", tmp_path / "cut", ITERATIONS)
    assert whole["ended"] == found["ended"] == "finished"
    assert found["pushes"] == 3 * ITERATIONS
    assert (found["twice"], found["missing"]) == (0, 0)
    assert found["model"] == whole["model"]
    assert float(found["seconds"]) > float(whole["seconds"])


def test_a_run_goes_on_without_a_host_that_is_cut_off_for_good(faults, tmp_path):
    with faults.RayHosts(5, faults.FAST, faults.CPUS) as hosts:
        found = faults.run(hosts, faults.Fault(faults.WORKER), "asp", tmp_path / "cut", ITERATIONS)
    assert found["ended"] == "finished", found["said"]
    assert found["pushes"] == 3 * ITERATIONS
    assert (found["twice"], found["missing"]) == (0, 0)
