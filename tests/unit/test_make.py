"""Building paradigms by name, one's own included."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import pytest
from annotated_types import Ge

from raysync.core.capability import Capability
from raysync.core.decisions import Apply, Note, Release, Suspend, Switch
from raysync.core.machine import Machine, describe
from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError
from raysync.paradigms import PARADIGMS, make, rebuild
from raysync.paradigms.class_loading import call_checked
from raysync.paradigms.registry import make_inner
from raysync.paradigms.wrapper import Wrapper
from raysync.testing import Drive
from tests.builders.messages import naming
from tests.builders.paradigms import SWITCHES, TICKING


@dataclass
class Mine(Paradigm):
    """A user's paradigm."""

    name: ClassVar[str] = "mine"
    patience: Annotated[int, Ge(1)] = 1

    def on_push(self, roster, push):
        return [Apply((push,)), Release(push[0])]

    def on_leave(self, roster, worker):
        return []

    def explain(self, roster, worker):
        return ""


class Undecorated(Mine):
    pass


@dataclass
class Seeing(Mine):
    seen: set[str] = field(default_factory=set, init=False)


@dataclass
class Noting(Wrapper):
    """Another paradigm, with a note whenever that has decided."""

    name: ClassVar[str] = "noting"

    def adapt(self, roster, decided):
        return [NOTE, *decided]


NOTE = Note("noted", "")


NOT_A_PARADIGM = 3
HERE = __name__


def test_names_are_those_of_the_registry():
    assert {name: cls.name for name, cls in PARADIGMS.items()} == {name: name for name in PARADIGMS}


def test_parameters_are_validated_and_kept():
    given = {"s_lower": 2, "s_upper": 9, "bound": "hard", "predict": "wait", "interval": "push"}
    assert make("lagtuner", **given).parameters() == given
    assert make("lagtuner").state() == {"credit": {}, "predicted_s": {}}
    assert make("bsp").phases() == ("",), "it does not switch"


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("spp", {}, "'spp' 'ssp'"),
        ("mine.AnyParadigm", {}, "yours: package.module:Name"),
        ("lag-tuner", {}, "'lagtuner'"),
        ("qqq", {}, "backup-workers ringmaster"),
        ("ssp", {"staleness": -1}, "staleness: 0 -1"),
        ("ssp", {"staleness": 1.5}, "staleness: 1.5"),
        ("ssp", {"stalenes": 1}, "'stalenes' 'staleness'"),
        ("asp", {"staleness": 1}, "parameters"),
        ("lagtuner", {"s_lower": 9, "s_upper": 3}, "s_lower 9 s_upper 3"),
        ("lagtuner", {"bound": "soft"}, "bound: 'hard' 'literal'"),
        ("lagtuner", {"credit": {}}, "'credit'"),
        ("no_such_module.at_all:X", {}, "'no_such_module.at_all'"),
        (f"{HERE}:Nobody", {}, "'Nobody'"),
        (":Nobody", {}, ":Nobody: package.module:Name"),
        (f"{HERE}:NOT_A_PARADIGM", {}, "@dataclass raysync.Paradigm"),
        (f"{HERE}:Undecorated", {}, "@dataclass"),
        (f"{HERE}:Mine", {"patience": 0}, "patience"),
        (f"{HERE}:Seeing", {}, "'seen' set()"),
    ],
)
def test_what_cannot_be_built_says_why(name, parameters, says):
    with pytest.raises(ConfigError, match=naming(says)):
        make(name, **parameters)


def test_ones_own_paradigm_is_made_snapshot_and_rebuilt():
    machine = Machine(make(f"{HERE}:Mine", patience=2))
    described = describe(machine.paradigm)
    rebuilt = rebuild(described.reference, described.parameters, trust=True)
    assert type(rebuilt) is Mine
    assert Machine.restore(machine.snapshot(), rebuilt).paradigm.patience == 2


def test_without_trust_only_what_is_registered_is_rebuilt():
    with pytest.raises(ConfigError, match=naming("--trust")):
        rebuild(f"{HERE}:Mine", {"patience": 2})
    with pytest.raises(ConfigError, match=naming("raysync")):
        rebuild("raysync.paradigms.ringmaster:Ringmaster", {"paradigm": {"name": f"{HERE}:Mine"}})
    with pytest.raises(ConfigError, match=naming("'patience'")):
        rebuild("raysync.paradigms.asp:ASP", {"patience": 2})


def test_a_users_function_gets_what_it_has_parameters_for():
    def function(size, classes=3):
        return size, classes

    offered = {"classes": 5, "input_shape": (1,)}
    assert call_checked(function, "here", {"size": 2}, offered) == (2, 5)
    for called, given, says in (
        (function, {"size": 2, "sise": 2}, "here: 'sise'"),
        (lambda: 1, {"x": 2}, "parameters"),
        (3.0, {}, "here: float"),
    ):
        with pytest.raises(ConfigError, match=naming(says)):
            call_checked(called, "here", given, offered)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import none_here\n", "ModuleNotFoundError: 'none_here' broken_here.py:1"),
        ("\nclass (:\n", "SyntaxError: broken_here.py:2"),
        ("x = 1\ny = z\n", "NameError: 'z' broken_here.py:2"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why_and_where(tmp_path, monkeypatch, text, says):
    (tmp_path / "broken_here.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=naming(says)):
        make("broken_here:X")


@pytest.mark.parametrize(
    ("name", "parameters", "demands"),
    [
        ("bsp", {}, []),
        ("ringmaster", {"paradigm": "ssp"}, []),
        ("balanced", {"paradigm": "ssp"}, ["balanced"]),
        ("sync-switch", {"then": {"name": "ringmaster", "paradigm": "balanced"}}, ["balanced"]),
        ("sync-switch", {}, []),
        ("sync-switch", {"batch_sizes": {"asp": 4}}, ["sync-switch: batch_sizes"]),
    ],
)
def test_a_paradigm_names_who_asks_for_batch_sizes(name, parameters, demands):
    asked = [(Capability.BATCH_SIZE, demand) for demand in demands]
    assert list(make(name, **parameters).demands()) == asked


def test_a_wrapper_leaves_all_of_the_contract_to_the_inner_paradigm():
    contract = {name for name in vars(Paradigm) if not name.startswith("_")}
    assert contract - vars(Wrapper).keys() == {"why_workers_stay", "parameters"}


def history(build):
    """All that a paradigm decides and says while workers come and go, and after it is restored."""
    workers = [f"a-{index}#1" for index in range(4)]
    drive = Drive(build(), *workers, workload_samples=2000)
    for turn in range(24):
        for worker in [*drive.roster.computing]:
            yield drive.push(worker, at=drive.now + (3 if worker == workers[0] else 0.1), busy_s=1)
            paradigm = drive.machine.paradigm
            is_held = worker in drive.roster.held
            yield paradigm.phase, is_held and paradigm.explain(drive.roster, worker)
        yield from [drive.tick(key) for key in [*drive.machine.timers][:1]]
        if turn == 7:
            yield drive.leave(workers[1])
            yield drive.join("a-1#2")
            drive.machine = Machine.restore(drive.machine.snapshot(), build())
            drive.roster = drive.machine.roster


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "bsp", "exchange": "ring"},
        {"name": "hybrid", "k": 4},
        {"name": "ringmaster", "paradigm": TICKING},
        *({"name": "sync-switch", **SWITCHES[label]} for label in ("bsp-asp-bsp", "elastic")),
    ],
)
def test_a_wrapper_does_what_the_inner_paradigm_does(spec):
    def inner():
        return make_inner(spec, "a test")

    def wrapper():
        return make(f"{HERE}:Noting", paradigm=spec)

    for ask in (
        lambda each: list(each.demands()),
        lambda each: each.phases(),
        lambda each: each.collective,
        lambda each: each.named_batch_sizes(),
        lambda each: [each.pushes_per_update(4, phase) for phase in each.phases()],
        lambda each: [bool(each.infeasible_reason(count)) for count in (3, 4)],
    ):
        assert ask(wrapper()) == ask(inner())
    for answer, bare in zip(history(wrapper), history(inner), strict=True):
        if isinstance(bare, list):
            asked = 1 + sum(isinstance(each, Suspend | Switch) for each in bare)
            assert answer.count(NOTE) == asked
            answer = [each for each in answer if each != NOTE]
        assert answer == bare
    assert wrapper().state() == {"inner": inner().state()}
