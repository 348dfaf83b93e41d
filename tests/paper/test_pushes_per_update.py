"""How many pushes make an update, which `update.lr_scaling` multiplies a learning rate by."""

import pytest

from raysync.core.paradigm import Paradigm
from raysync.paradigms import make

WORKERS = 4
KASYNC_TO_BSP = {"first": {"name": "k-batch-async", "k": 3}, "then": "bsp"}
PUSHES = [
    ("asp", {}, "", 1),
    ("ssp", {}, "", 1),
    ("lagtuner", {}, "", 1),
    ("bsp", {}, "", WORKERS),
    ("hybrid", {"k": 3}, "", 3),
    ("hybrid", {"k": 9}, "", WORKERS),
    ("hybrid", {"k": "all"}, "", WORKERS),
    ("k-sync", {"k": 3}, "", 3),
    ("backup-workers", {"backups": 1}, "", WORKERS - 1),
    ("k-batch-sync", {"k": 3}, "", 3),
    ("quorum", {"k": 3}, "", 3),
    ("quorum", {"k": 3, "grace_s": 1}, "", None),
    ("quorum", {"k": 9, "grace_s": 1}, "", WORKERS),
    ("local", {"paradigm": {"name": "k-sync", "k": 3}}, "", 3),
    ("k-batch-async", {"k": 3}, "", 3),
    ("balanced", {"paradigm": "bsp"}, "", WORKERS),
    ("ringmaster", {"paradigm": {"name": "k-batch-async", "k": 2}}, "", 2),
    ("decoupled", {"groups": 2}, "", 2),
    ("sync-switch", KASYNC_TO_BSP, "k-batch-async", 3),
    ("sync-switch", KASYNC_TO_BSP, "bsp", WORKERS),
]


@pytest.mark.parametrize(("name", "parameters", "phase", "pushes"), PUSHES)
def test_an_update_takes_as_many_pushes_as_its_rule_waits_for(name, parameters, phase, pushes):
    assert make(name, **parameters).pushes_per_update(WORKERS, phase) == pushes


def test_phases_of_one_name_whose_updates_differ_have_no_number():
    alike = {"first": {"name": "hybrid", "k": 1}, "then": {"name": "hybrid", "k": 3}}
    assert make("sync-switch", **alike).pushes_per_update(WORKERS, "hybrid") is None


def test_a_paradigm_that_does_not_say_has_no_number():
    assert Paradigm.pushes_per_update(make("bsp"), WORKERS) is None
