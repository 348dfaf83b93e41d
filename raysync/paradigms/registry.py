"""Builds paradigms by name, also nested ones."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from raysync.core.paradigm import AnyParadigm, Paradigm, reference_to
from raysync.core.structs import JSON_NATIVE, not_native
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import (
    NotTrusted,
    load_reference,
    untrusted_error,
    without_imports,
)
from raysync.users_code import users_code

PARADIGMS: dict[str, type[AnyParadigm]] = {}  # the package fills this in


@dataclass(frozen=True)
class Preset:
    """A paradigm under another name, with other defaults."""

    about: str
    paradigm: str
    parameters: dict[str, Any] = field(default_factory=dict)


PRESETS: dict[str, Preset] = {}

Spec = str | dict[str, Any]  # A nested paradigm: `ssp`, or `{name: ssp, staleness: 3}`.
# the parameters that have a Spec, or a list of them
SPEC_PARAMETERS = ("paradigm", "first", "then", "sync")
WORKERS_PARAMETER = "workers"  # an experiment completes it with its worker groups


def make(name: str, /, **parameters: Any) -> AnyParadigm:
    """Build a paradigm of `PARADIGMS` or `PRESETS`, or a user's `package.module:Class`.

    Raises:
        ConfigError: an unknown name or parameter (the nearest is named), or a value out of range.
    """
    preset = PRESETS.get(name)
    cls: Any = _class(preset.paradigm if preset else name)
    names = [field.name for field in fields(cls) if field.init]
    for parameter in parameters:
        if parameter not in names:
            if not names:
                raise ConfigError(f"paradigm {name}: takes no parameters, got {parameter!r}.")
            raise unknown_name("parameter", parameter, names, where=f"paradigm {name}")
    with users_code(f"paradigm {name}"):
        return _validated(name, cls, {**(preset.parameters if preset else {}), **parameters})


def _validated(name: str, cls: type[AnyParadigm], parameters: dict[str, Any]) -> AnyParadigm:
    try:
        paradigm: AnyParadigm = _adapter(cls).validate_python(parameters)
    except ValidationError as error:
        first, *others = error.errors()
        if first["type"] == "value_error":  # __post_init__ checks several parameters together
            raise ConfigError(f"paradigm {first['ctx']['error']}") from error
        where = first["loc"][:1] if others else first["loc"]
        allowed = dict.fromkeys(
            other["msg"] for other in (first, *others) if other["loc"][:1] == first["loc"][:1]
        )
        raise ConfigError(
            f"paradigm {name}: {'.'.join(map(str, where))}: {', or: '.join(allowed)}; "
            f"got {first['input']!r}{_hint(first)}"
        ) from error
    if not isinstance(paradigm, Paradigm):
        return paradigm
    _ = paradigm.phases(), list(paradigm.demands())  # a user's code may fail in them
    if what := not_native(paradigm.parameters()) or not_native(paradigm.state()):
        raise ConfigError(
            f"paradigm {name}: it has {what}; parameters and state are {JSON_NATIVE}."
        )
    return paradigm


# Importing a class that is no part of raysync runs its module: this needs `trust`.
def rebuild(class_name: str, parameters: dict[str, Any], *, trust: bool = False) -> AnyParadigm:
    """Build a fresh paradigm from the class and parameters in a journal's header.

    Raises:
        ConfigError: as for `make`, or the class, which is no part of raysync, is not trusted.
    """
    registered = {reference_to(cls): name for name, cls in PARADIGMS.items()}
    try:
        with nullcontext() if trust else without_imports():
            return make(registered.get(class_name, class_name), **parameters)
    except NotTrusted as error:
        raise untrusted_error(f"the paradigm {error}") from error


def make_inner(spec: Spec, where: str) -> Paradigm:
    """Build the `Paradigm` that another one names in its parameter `where`."""
    settings = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{where}: no name in {spec!r}; write {{name: ssp, staleness: 3}}.")
    try:
        paradigm = make(name, **settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    if not isinstance(paradigm, Paradigm):
        raise ConfigError(
            f"{where}: {name} is a kind of run, not a paradigm that another one can use."
        )
    return paradigm


def has_workers_parameter(name: str) -> bool:
    """Return whether a registered paradigm has the parameter `WORKERS_PARAMETER`."""
    cls: Any = PARADIGMS.get(name)
    return cls is not None and any(field.name == WORKERS_PARAMETER for field in fields(cls))


def short_name(name: str) -> str:
    """Return a paradigm's name in tables: the name itself, or the `name` of a user's class.

    A class without its own `name`, or with a registered one, has its class name. Nothing is
    imported.
    """
    module, colon, path = name.partition(":")
    if not colon:
        return name
    cls: Any = sys.modules.get(module)
    for part in path.split("."):
        cls = getattr(cls, part, None)
    label = vars(cls).get("name") if isinstance(cls, type) else None
    registered = {*PARADIGMS, *PRESETS}
    return label if isinstance(label, str) and label and label not in registered else path


def _hint(error: ErrorDetails) -> str:
    names = (
        re.findall(r"'(.*?)'", error["ctx"]["expected"]) if error["type"] == "literal_error" else []
    )
    nearest = get_close_matches(str(error["input"]), names, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else "."


@cache
def _adapter(cls: type[AnyParadigm]) -> TypeAdapter[AnyParadigm]:
    return TypeAdapter(cls)  # takes milliseconds


def _class(name: str) -> type[AnyParadigm]:
    if ":" not in name:
        if name not in PARADIGMS:
            known = sorted([*PARADIGMS, *PRESETS])
            raise unknown_name(
                "paradigm", name, known, listed=[*known, "or yours: package.module:Name"]
            )
        return PARADIGMS[name]
    cls = load_reference(name, f"paradigm {name}")
    if not (
        isinstance(cls, type) and issubclass(cls, Paradigm) and "__dataclass_params__" in vars(cls)
    ):
        raise ConfigError(f"paradigm {name!r} is not a @dataclass that extends raysync.Paradigm.")
    return cls
