"""Building paradigms by name, one's own included."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import pytest
from annotated_types import Ge

from raysync.core.capability import Capability
from raysync.core.decisions import Apply, Release
from raysync.core.machine import Description, Machine, describe
from raysync.core.paradigm import Paradigm
from raysync.core.structs import decode, encode
from raysync.errors import ConfigError
from raysync.paradigms import PARADIGMS, make, rebuild
from raysync.paradigms.class_loading import call
from raysync.paradigms.registry import called


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


NOT_A_PARADIGM = 3
HERE = __name__


def test_names_are_those_of_the_registry():
    assert {name: cls.name for name, cls in PARADIGMS.items()} == {name: name for name in PARADIGMS}


def test_parameters_are_validated_and_kept():
    assert make("lagtuner", s_lower=2, predict="wait").parameters() == {
        "s_lower": 2,
        "s_upper": 15,
        "bound": "hard",
        "predict": "wait",
        "interval": "push",
    }
    assert make("bsp").state() == {}
    assert make("bsp").phases() == ("",), "it does not switch"
    assert make("lagtuner").state() == {"credit": {}, "predicted_s": {}}


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("spp", {}, "unknown paradigm 'spp'; did you mean 'ssp'?"),
        ("mine.AnyParadigm", {}, "or yours: package.module:Name."),
        ("lag-tuner", {}, "did you mean 'lagtuner'?"),
        (
            "qqq",
            {},
            "Allowed: asp, backup-workers, balanced, bsp, decoupled, hybrid, .*, ringmaster, .*ssp",
        ),
        ("ssp", {"staleness": -1}, "staleness: Input should be greater than or equal to 0; got -1"),
        ("ssp", {"staleness": 1.5}, "staleness: .*got 1.5"),
        ("ssp", {"stalenes": 1}, "unknown parameter 'stalenes'; did you mean 'staleness'?"),
        ("asp", {"staleness": 1}, "takes no parameters"),
        (
            "lagtuner",
            {"s_lower": 9, "s_upper": 3},
            r"s_lower \(9\) must not be above s_upper \(3\)",
        ),
        ("lagtuner", {"bound": "soft"}, "bound: .*'hard' or 'literal'"),
        ("lagtuner", {"credit": {}}, "unknown parameter 'credit'"),
        ("no_such_module.at_all:X", {}, "there is no module 'no_such_module.at_all'"),
        (f"{HERE}:Nobody", {}, "has no 'Nobody'"),
        (":Nobody", {}, "paradigm :Nobody: write it as package.module:Name"),
        (f"{HERE}:NOT_A_PARADIGM", {}, "is not a @dataclass that extends raysync.Paradigm"),
        (f"{HERE}:Undecorated", {}, "is not a @dataclass"),
        (f"{HERE}:Mine", {"patience": 0}, "patience"),
        (
            f"{HERE}:Seeing",
            {},
            r"it has 'seen' as set: set\(\); parameters and state are None, a bool",
        ),
    ],
)
def test_what_cannot_be_built_says_why(name, parameters, says):
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        make(name, **parameters)


def test_ones_own_paradigm_is_made_snapshot_and_rebuilt():
    machine = Machine(make(f"{HERE}:Mine", patience=2))
    described = describe(machine.paradigm)
    rebuilt = rebuild(described.reference, described.parameters, trust=True)
    assert type(rebuilt) is Mine
    assert Machine.restore(machine.snapshot(), rebuilt).paradigm.patience == 2


def test_a_class_is_called_by_a_name_of_its_own():
    """What it inherits, and what cannot be found without an import, is no name of its own."""
    names = ["ssp", f"{HERE}:Mine", f"{HERE}:Undecorated", f"{HERE}:Nothing", "nowhere:Room.Inner"]
    assert [called(name) for name in names] == [
        "ssp",
        "mine",
        "Undecorated",
        "Nothing",
        "Room.Inner",
    ]


def test_without_trust_only_what_is_registered_is_rebuilt():
    with pytest.raises(ConfigError, match=r"Mine does not come with raysync(.|\n)*--trust"):
        rebuild(f"{HERE}:Mine", {"patience": 2})
    with pytest.raises(ConfigError, match="does not come with raysync"):
        rebuild("raysync.paradigms.ringmaster:Ringmaster", {"paradigm": {"name": f"{HERE}:Mine"}})
    with pytest.raises(ConfigError, match="takes no parameters, got 'patience'"):
        rebuild("raysync.paradigms.asp:ASP", {"patience": 2})


@pytest.mark.parametrize("name", PARADIGMS)
def test_what_a_header_describes_is_rebuilt(name):
    described = decode(encode(describe(make(name))), Description)
    rebuilt = rebuild(described.reference, described.parameters)
    assert (type(rebuilt), describe(rebuilt)) == (PARADIGMS[name], described)


def test_a_users_function_gets_what_it_has_parameters_for():
    def function(size, classes=3):
        return size, classes

    assert call(function, "here", {"size": 2}, {"classes": 5, "input_shape": (1,)}) == (2, 5)
    with pytest.raises(
        ConfigError, match="here: got an unexpected keyword argument 'sise'. It takes: size"
    ):
        call(function, "here", {"size": 2, "sise": 2}, {"classes": 5})
    with pytest.raises(ConfigError, match="It takes: no parameters"):
        call(lambda: 1, "here", {"x": 2}, {})
    with pytest.raises(ConfigError, match="here: it is no function, but float"):
        call(3.0, "here", {}, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "import surely_not_installed\n",
            "ModuleNotFoundError: No module named 'surely_not_installed' (.*broken_here.py:1)",
        ),
        ("\nclass (:\n", "SyntaxError: invalid syntax (.*broken_here.py:2)"),
        ("x = 1\ny = z\n", "NameError: name 'z' is not defined (.*broken_here.py:2)"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why_and_where(tmp_path, monkeypatch, text, says):
    (tmp_path / "broken_here.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=says.replace("(", r"\(").replace(")", r"\)")):
        make("broken_here:X")


@pytest.mark.parametrize(
    ("name", "parameters", "demands"),
    [
        ("bsp", {}, []),
        ("ringmaster", {"paradigm": "ssp"}, []),
        ("balanced", {"paradigm": "ssp"}, [(Capability.BATCH_SIZE, "balanced")]),
        (
            "sync-switch",
            {"then": {"name": "ringmaster", "paradigm": "balanced"}},
            [(Capability.BATCH_SIZE, "balanced")],
        ),
        ("sync-switch", {}, []),
        (
            "sync-switch",
            {"batch_sizes": {"asp": 4}},
            [(Capability.BATCH_SIZE, "sync-switch: batch_sizes")],
        ),
    ],
)
def test_a_paradigm_names_what_it_asks_of_a_topology(name, parameters, demands):
    assert list(make(name, **parameters).demands()) == demands
