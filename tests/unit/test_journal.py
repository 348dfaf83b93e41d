"""The journal: text that says everything, and replay that believes only the events."""

import json
import math

import pytest
from hypothesis import example, given, strategies as st
from msgspec import inspect
from msgspec.structs import replace

from raysync.core.events import Left, Pushed
from raysync.core.journal import (
    JOURNAL_SCHEMA,
    Ended,
    Entry,
    Evaluation,
    Line,
    Remark,
    Report,
    decode,
    encode,
    header,
    read,
)
from raysync.core.machine import Machine
from raysync.core.metrics import LOSS, RESERVED
from raysync.core.replay import replay
from raysync.errors import ConfigError
from raysync.paradigms import make, rebuild
from raysync.paradigms.asp import ASP
from tests.builders.messages import naming, tells
from tests.builders.schedules import joins, simulate


def values(kind):
    """All that a type of the journal holds, by its own description."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            given = {field.name: values(field.type) for field in fields}
            if cls is Evaluation:
                name = st.text(max_size=8).filter(is_name)
                metrics = st.dictionaries(name, values(FLOAT), max_size=3)
                given["metrics"] = st.builds(lambda it: {LOSS: 1.0} | it, metrics)
            return st.builds(cls, **given)
        case inspect.UnionType(types=types):
            return st.one_of(map(values, types))
        case inspect.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=3).map(tuple)
        case inspect.ListType(item_type=item):
            return st.lists(values(item), max_size=3)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(values, items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=3)
        case inspect.LiteralType(values=literals):
            return st.sampled_from(literals)
        case inspect.IntType(ge=least, le=most):
            return st.integers(least, most)
        case inspect.FloatType(ge=least, le=most):
            return st.floats(least, most, allow_nan=False)
        case inspect.AnyType():
            return st.text(max_size=8) | st.integers(-9, 9) | values(FLOAT)
        case inspect.StrType():
            return st.text(max_size=8)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()


FLOAT = inspect.FloatType()


def is_name(name):
    """Whether a metric can be called that."""
    return name and name.isprintable() and name not in RESERVED


def journal(name, pushes=40, **parameters):
    machine = Machine(make(name, **parameters), 1000)
    step_s = {"a#1": 1.0, "b#1": 2.1}
    entries = [
        encode(Entry(event, tuple(decisions)))
        for event, decisions in simulate(
            machine, joins("a#1", "b#1"), lambda w, _: step_s[w], pushes
        )
    ]
    return machine, [f"{line}\n" for line in [header(make(name, **parameters), 1000), *entries]]


ON_ITS_WAY = Pushed(at=3.0, worker="a", clock=0, base=0, samples=8, busy_s=1.0, computed_at=2.0)


@given(values(inspect.type_info(Line)))
@example(Remark(1.0, "So it is."))
@example(Entry(ON_ITS_WAY, ()))
@example(Entry(replace(ON_ITS_WAY, computed_at=None), ()))
def test_what_is_encoded_is_decoded(line):
    text = encode(line)
    assert "\n" not in text
    assert decode(text) == line


@pytest.mark.parametrize("name", ["bsp", "asp", "ssp", "lagtuner"])
def test_a_journal_replays_to_the_same_decisions_and_the_same_state(name):
    """Evaluations, remarks and the end are for readers."""
    machine, text = journal(name)
    evaluation = Evaluation(mark=0.5, progress=0.5, version=1, at=1.0, metrics={"loss": 1.0})
    text[3:3] = [f"{encode(line)}\n" for line in (evaluation, Remark(1.0, "So it is."))]
    assert not replay(text, rebuild).ended
    text.append(encode(Ended("finished", 999.0)) + "\n")
    replayed = replay(text, rebuild)
    assert replayed.difference is None
    assert replayed.ended
    assert replayed.events == len(text) - 4
    assert replayed.machine.snapshot() == machine.snapshot()
    with pytest.raises(ConfigError, match=naming(f"line {len(text) + 1}")):
        replay([*text, "x"], rebuild)


def test_the_first_difference_is_shown():
    _, text = journal("ssp", staleness=2)
    text[5] = text[5].replace('"version":3', '"version":4')
    assert tells(replay(text, rebuild).difference, "event 5: Pushed( version=4 version=3")


def test_an_illegal_history_is_a_difference():
    _, text = journal("asp")
    del text[3]
    assert "ProtocolViolation" in replay(text, rebuild).difference


def test_only_a_last_line_that_was_cut_off_is_passed_over():
    _, text = journal("bsp")
    text[-1] = text[-1][:30]
    assert replay(text, rebuild).events == len(text) - 2
    text[4] = '{"type": "Entry", "event": {"type": "Pushed", "at": 1}}\n'
    with pytest.raises(ConfigError, match=naming("line 5")):
        replay(text, rebuild)


DEEP = json.loads("[" * 30 + "]" * 30)


@pytest.mark.parametrize(
    "damage",
    [
        {"paradigm": None},
        {"paradigm": {"class": 3, "parameters": {}}},
        {"paradigm": {"class": "a:B", "parameters": []}},
        {"workload_samples": 0},
        {"workload_samples": "x"},
        {"workload_samples": 1.5},
        {"workload_samples": 10**30},
        {"about": [1]},
        {"about": {"seed": 10**400}},
        {"about": {"seed": DEEP}},
    ],
)
def test_a_header_without_what_a_replay_needs(damage):
    head = json.loads(header(make("bsp"), 960))
    read([json.dumps(head)])
    with pytest.raises(ConfigError, match="header"):
        read([json.dumps(head | damage)])


LEFT = {"type": "Left", "at": 1, "worker": "a"}
PUSHED = {"type": "Pushed", "at": 1, "worker": "a", "clock": 0, "base": 0, "samples": 1}
DROP = {"type": "Drop", "push": ["a", 1], "why": ""}
NOTE = {"type": "Note", "kind": "", "worker": ""}


def entry(event=LEFT, *decisions, **more):
    """The text of an entry."""
    return json.dumps({"type": "Entry", "event": event, "decisions": decisions} | more)


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[1]",
        "[" * 100_000,
        "{}",
        json.dumps(LEFT),
        entry({"type": "Apply", "pushes": []}),
        entry({"type": "Left", "at": 1}),
        entry(PUSHED | {"busy_s": 1, "computed_at": -1}),
        *(entry(LEFT | wrong) for wrong in ({"worker": 3}, {"more": 1})),
        *(entry(LEFT | {"at": at}) for at in (-1, math.nan, 1e300, True)),
        *(entry(report=wrong) for wrong in ({"why": 3}, {"more": 3})),
        *(entry(LEFT, DROP | {"push": push}) for push in (["a", "b"], ["a"])),
        *(entry(LEFT, DROP | {"reason": reason}) for reason in ("x", [])),
        *(entry(LEFT, {"type": "Apply", "pushes": [["a", clock]]}) for clock in (1e9, 2**63)),
        *(entry(LEFT, NOTE | {"values": values}) for values in ([], {"x": DEEP}, {"x": 2**63})),
        entry(LEFT, 3),
        entry(LEFT, LEFT),
        entry(LEFT, {"type": "Apply", "pushes": [], "samples_before": "1"}),
        entry(LEFT, {"type": "Suspend", "worker": "a"}),
        entry(LEFT, {"type": "Restore", "worker": 1}),
        entry(LEFT, {"type": "Release", "worker": "a", "pull": 1}),
        '{"type": "Remark", "text": "x"}',
        '{"type": "Ended", "status": 1, "at": 1}',
        '{"type": "Ended", "at": 1}',
        '{"type": "Ended", "status": "", "at": 1, "faults_without_effect": [1]}',
    ],
)
def test_what_is_of_another_type_is_no_line(text):
    assert decode(entry()) == Entry(Left(at=1.0, worker="a"), ())
    with pytest.raises(ConfigError):
        decode(text)


def test_a_history_at_which_the_rule_stands_still_is_a_difference():
    """K-sync of more workers than there were: a run is not begun so."""
    _, text = journal("asp")
    text[0] = text[0].replace("raysync.paradigms.asp:ASP", "raysync.paradigms.bsp:BSP")
    assert "replayed: " in replay(text, rebuild).difference

    class Stuck(ASP):
        def on_join(self, roster, worker):
            return []

    assert "AssertionError" in replay(text, lambda *_: Stuck()).difference


@pytest.mark.parametrize("first", ["", "no json", "[1]", '{"event": "Left"}'])
def test_something_else_is_no_journal(first):
    with pytest.raises(ConfigError, match="header"):
        read([f"{first}\n"] if first else [])


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (JOURNAL_SCHEMA - 1, "older"),
        (JOURNAL_SCHEMA + 1, "newer"),
        (-1, "older"),
        *((other, "another") for other in (10**400, True, "1", None)),
    ],
)
def test_another_schema_is_refused(schema, says):
    head = json.loads(header(make("bsp"), None)) | {"journal": schema}
    with pytest.raises(ConfigError, match=naming(f"{says} 1")):
        read([json.dumps(head)])


@pytest.mark.parametrize(
    ("report", "is_loss"),
    [
        (Report(planned=False), True),
        (Report(planned=False, restart_in_s=2.0), True),
        (Report(planned=True, restart_in_s=2.0), False),
        (Report(planned=True), False),
        (Report(done=True), False),
        (Report(restart_in_s=2.0), True),  # of an earlier version
        (Report(why="crashed: faults[0]"), False),  # likewise
        (Report(), False),
    ],
)
def test_a_loss_is_what_nobody_planned(report, is_loss):
    assert report.is_loss is is_loss
