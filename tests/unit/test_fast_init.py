"""Dataclasses that are filled in by slot behave as any frozen dataclass does."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, replace
from inspect import signature

import pytest

from raysync.core.fast_init import fast_init, maker


@dataclass(frozen=True, slots=True)
class _Plain:
    worker: str
    clock: int = -1
    size: int | None = None


@fast_init
@dataclass(frozen=True, slots=True)
class _Filled:
    worker: str
    clock: int = -1
    size: int | None = None


@dataclass(slots=True)
class _Open:
    worker: str
    clock: int


def test_it_is_made_as_before():
    assert str(signature(_Filled)) == str(signature(_Plain))
    assert repr(_Filled("a", size=2)) == repr(_Plain("a", size=2)).replace("_Plain", "_Filled")
    assert replace(_Filled("a", 1), size=2) == _Filled("a", 1, 2) != _Filled("a", 1)


def test_it_stays_frozen():
    with pytest.raises(FrozenInstanceError):
        _Filled("a").clock = 3


def test_a_maker_takes_fields_in_their_order():
    filled = maker(_Filled)("a", 1, 2)
    assert filled == _Filled("a", clock=1, size=2)
    assert type(filled) is _Filled
    with pytest.raises(FrozenInstanceError):
        filled.clock = 3
    assert maker(_Filled)("a") == _Filled("a")
    with pytest.raises(TypeError, match="worker"):
        maker(_Filled)()


def test_a_maker_of_a_class_that_is_not_frozen():
    changed = maker(_Open)("a", 1)
    changed.clock = 3
    assert changed == _Open("a", 3)
