"""What a paradigm of the user's own is called in tables, folders and reports."""

import sys
from pathlib import Path

import pytest
import yaml

from raysync import load
from raysync.config import ParadigmChoice
from raysync.config.base import value_text
from raysync.paradigms.registry import short_name
from raysync.results.collection import collect
from raysync.results.grouping import setting_text

MINE = """
from dataclasses import dataclass
from typing import ClassVar
from raysync.paradigms.asp import ASP
from raysync.paradigms.bsp import BSP

@dataclass
class PSP(ASP):
    name: ClassVar[str] = "psp"
    share: float = 0.5

@dataclass
class Inherits(PSP):
    pass

@dataclass
class Nameless(BSP):
    pass

@dataclass
class Taken(ASP):
    name: ClassVar[str] = "ssp"

class Outer:
    @dataclass
    class Inner(ASP):
        name: ClassVar[str] = "inner"
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's own that nothing else has imported; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "labelled.py").write_text(MINE)
    yield "labelled"
    sys.modules.pop("labelled", None)


@pytest.mark.parametrize(
    ("cls", "label"),
    [
        ("PSP", "psp"),
        ("Inherits", "Inherits"),
        ("Nameless", "Nameless"),
        ("Taken", "Taken"),
        ("Outer.Inner", "inner"),
    ],
)
def test_a_class_is_called_by_a_name_of_its_own(mine, cls, label):
    assert short_name(f"{mine}:{cls}") == cls, "as long as it is not imported"
    assert mine not in sys.modules
    assert ParadigmChoice(name=f"{mine}:{cls}").label == label


def test_registered_names_and_parameters_stay_as_they_are(mine):
    assert short_name("k-sync") == "k-sync"
    given = {"name": f"{mine}:PSP", "share": 0.25}
    assert ParadigmChoice.model_validate(given).label == "psp(share=0.25)"
    assert ParadigmChoice.model_validate({"name": "ringmaster", "paradigm": given}).label == (
        "ringmaster(paradigm=psp(share=0.25))"
    )


def test_tables_folders_and_reports_agree(mine, call, monkeypatch):
    """Also in a process that has not imported the class, and in the order of the file."""
    experiment = {
        "name": "own",
        "engine": "virtual",
        "timing": "only",
        "workload": {"samples": 320},
        "workers": [{"step_s": 0.1}],
        "paradigms": [{"name": f"{mine}:PSP", "share": 0.25}, "bsp"],
    }
    Path("x.yaml").write_text(yaml.safe_dump(experiment))
    _, out, _ = call("compare", "x.yaml")
    assert " psp(share=0.25) " in out
    assert "PSP" not in out
    folders = sorted(Path("runs/own").iterdir(), key=lambda one: "psp" not in one.name)
    assert "-psp-share=0.25-" in folders[0].name
    assert load(folders[0]).summary["paradigm"] == f"{mine}:PSP", "another run is made of that"
    del sys.modules[mine]
    # As if it were not imported.
    monkeypatch.setattr("raysync.config.base.short_name", lambda name: name.rpartition(":")[2])
    assert collect([Path("runs/own")]).paradigms == ("psp(share=0.25)", "bsp")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1 + 0.2, "0.3"), (1e-5, "1e-05"), (0.004430375245218269, "0.00443037525"), (3, "3")],
)
def test_a_label_has_no_more_digits_than_say_something(value, text):
    """Wherever the number stands in the parameters."""
    for wrapped, around in ((value, "{}"), ([value], "[{}]"), ({"a": value}, "{{'a': {}}}")):
        assert setting_text(wrapped) == value_text(wrapped) == around.format(text)
        assert setting_text({"name": "m", "x": wrapped}) == f"m(x={around.format(text)})"
    label = ParadigmChoice.model_validate({"name": "balanced", "smoothing": 0.1 + 0.2}).label
    assert label == "balanced(smoothing=0.3)"


def test_arms_that_differ_have_labels_that_differ():
    assert value_text(0.1) != value_text(0.1 + 1e-9)
