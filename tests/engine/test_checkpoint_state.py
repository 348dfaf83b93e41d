"""What a checkpoint's state must have before a run on Ray goes on from it: whatever else is in it,
the answer is a `ConfigError`.
"""

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from raysync.config import ParadigmChoice
from raysync.core.checkpoint import Checkpoint
from raysync.engine.checkpoint_state import check_restorable, files_of
from raysync.errors import ConfigError
from tests.builders.paradigms import VARIANTS
from tests.builders.virtual import cut_task, interrupted, resumed, timed

DEEP = json.loads("[" * 60 + "]" * 60)
OTHERS = [None, True, -1, 10**400, 1.5, float("nan"), "x", "\0", [], [[]], {}, {"x": 1}, DEEP]
WHOLE = timed(
    workers=[{"count": 3, "step_s": 0.1}, {"name": "slow", "count": 1, "step_s": 0.55}],
    workload={"samples": 60},
    faults=[{"kind": "crash", "worker": "worker-2", "at_s": 0.25, "rejoin_after_s": 5.0}],
)
RUNS = {
    "bsp": (WHOLE, ParadigmChoice(name="bsp"), 12),
    "lagtuner": (WHOLE, ParadigmChoice(name="lagtuner"), 6),
    "decoupled": (
        cut_task(2, 1, keep="best", stop={"patience": 9}),
        ParadigmChoice(name="decoupled", modules=2, groups=1),
        20,
    ),
}


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    """The task, the paradigm, and a checkpoint of it."""
    task, choice, after = RUNS[request.param]
    _, checkpoint = interrupted(task, choice, after)
    assert checkpoint is not None
    return task, choice, checkpoint


def places(value, path=()):
    """The path of each value within a tree, also within the texts that are JSON themselves."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        value = json.loads(value)
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def changed(value, path, other):
    """The same tree with another value at a path; or without it."""
    if isinstance(value, str):
        return json.dumps(changed(json.loads(value), path, other))
    first, *rest = path
    if rest:
        value[first] = changed(value[first], rest, other)
    elif other is KeyError:
        del value[first]
    else:
        value[first] = other
    return value


def test_any_other_state_is_refused_or_goes_on(run):
    """A value of another type anywhere is refused, or is one that the run can go on with."""
    _, choice, checkpoint = run
    check_restorable(checkpoint, choice.make())
    refused = []
    for path in list(places(checkpoint.state))[1:]:
        for other in [KeyError, *OTHERS]:
            state = changed(deepcopy(checkpoint.state), path, other)
            try:
                check_restorable(replace(checkpoint, state=state), choice.make())
            except ConfigError:
                refused.append((path, repr(other)))
    kinds = {path[0] for path, other in refused if other == repr(KeyError)}
    assert kinds == set(checkpoint.state)
    texts = {path[-2:] for path, other in refused if other == repr("x")}
    assert {("last_at",), ("roster", "version"), ("roster", "samples_applied")} <= texts


@pytest.mark.parametrize(
    ("path", "other"),
    [
        (("version",), 2**63),
        (("topology", "machine", "roster", "version"), 2**63),
        (("topology", "machine", "roster", "_slowest_at"), 0),
        (("early_stop", "more"), 0),
        (("more",), 0),
    ],
)
def test_no_number_is_too_large_and_nothing_is_added(run, path, other):
    _, choice, checkpoint = run
    if choice.name == "bsp":
        state = changed(deepcopy(checkpoint.state), path, other)
        with pytest.raises(ConfigError):
            check_restorable(replace(checkpoint, state=state), choice.make())


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_checkpoint_of_a_run_is_one_to_go_on_from(variant):
    name, parameters = VARIANTS[variant]
    choice = ParadigmChoice(name=name, **parameters)
    for after in (0, 3, 5):
        if (checkpoint := interrupted(WHOLE, choice, after)[1]) is not None:
            check_restorable(checkpoint, choice.make())


def test_what_is_not_refused_has_not_changed(run):
    _, choice, checkpoint = run
    before = json.dumps(checkpoint.state)
    check_restorable(checkpoint, choice.make())
    assert json.dumps(checkpoint.state) == before
    assert resumed(*run)[-1].status == "finished"


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"pushed": []},
        {"batch_sizes": {"worker-9#1": None}},
        {"topology": {"machine": "{}", "pushers": []}},
        {"topology": {"machine": "[" * 10_000, "pushers": []}},
    ],
)
def test_parts_that_do_not_go_together_are_refused(change):
    task, choice = WHOLE, ParadigmChoice(name="bsp")
    checkpoint = next(
        found
        for after in range(8, 30)
        if (found := interrupted(task, choice, after)[1]) is not None and found.state["pushed"]
    )
    state = {**checkpoint.state, **change} if change else {}
    with pytest.raises(ConfigError):
        check_restorable(replace(checkpoint, state=state), choice.make())
    with pytest.raises(ConfigError):
        check_restorable(checkpoint, ParadigmChoice(name="asp").make())


def test_a_server_has_as_many_files_as_it_has_shards():
    checkpoint = Checkpoint(1, 0.0, {}, {"server": [b"0", b"1"]})
    assert files_of(checkpoint, "server", 2) == [b"0", b"1"]
    for server, count in (("server", 1), ("other", 2)):
        with pytest.raises(ConfigError):
            files_of(checkpoint, server, count)
