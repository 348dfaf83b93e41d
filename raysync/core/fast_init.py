"""A faster way to make frozen dataclasses, of which each push makes several: half of the time, or a
fifth.

The `__init__` of a frozen dataclass looks each slot up by its name, for `object.__setattr__`. Here
an instance is of a twin class while it is filled: one with the same slots, which is not frozen.
Afterwards it is of its own class, and nothing sets it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import signature
from typing import Any, TypeVar

T = TypeVar("T")
_set_class: Callable[[Any, type], None] = vars(object)["__class__"].__set__
"""Sets the class of an instance, frozen or not."""


def fast_init(cls: type[T]) -> type[T]:
    """Give a frozen dataclass with slots a faster `__init__` of the same signature.

    Its defaults must be literals, since the signature is written as source and compiled.
    """
    begin = "set_class(self, Twin)"
    cls.__init__ = _compiled(cls, "__init__", str(signature(cls.__init__)), begin)  # type: ignore[method-assign]
    return cls


def maker(cls: type[T]) -> Callable[..., T]:
    """Return a function that makes an instance of a dataclass with slots from its fields, in their
    order. It takes half of the time of a fast `__init__`, since Python calls a function faster than
    a class, and a fifth of the time of a frozen dataclass's own `__init__` with names.

    Defaults must be literals, as those of `fast_init`; a field with a default factory has none.
    """
    parameters = ", ".join(
        each.name if each.default is MISSING else f"{each.name}={each.default!r}"
        for each in fields(cls)  # type: ignore[arg-type]
    )
    make: Callable[..., T] = _compiled(
        cls, "make", f"({parameters})", "self = Twin()", "return self"
    )
    return make


def slot_setter(cls: type, name: str) -> Callable[[Any, Any], None]:
    """Return a function that sets a slot of an instance, frozen or not."""
    fill: Callable[[Any, Any], None] = vars(cls)[name].__set__
    return fill


def _compiled(cls: type, name: str, parameters: str, begin: str, end: str = "") -> Any:
    """Return a function that fills an instance `self` of the twin class, and then gives it its own.

    Args:
        cls: the own class.
        name: of the function.
        parameters: of the function, as source: one a field, of the same name.
        begin: a statement before that.
        end: one behind it.
    """
    names = _names(cls)
    twin = type(f"_Open{cls.__name__}", (), {"__slots__": tuple(names)})
    fills = [f"self.{each} = {each}" for each in names]
    lines = [f"def {name}{parameters}:", begin, *fills, "self.__class__ = Own", end]
    scope = {"set_class": _set_class, "Twin": twin, "Own": cls}
    source = "\n ".join(lines)
    exec(compile(source, f"<{name} of {cls.__name__}>", "exec", dont_inherit=True), scope)
    return scope[name]


def _names(cls: Any) -> list[str]:
    return [field.name for field in fields(cls)]
