"""The synchronisation rules, one file each, and how to make one by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from raysync.core.paradigm import Paradigm
from raysync.core.reference import load_reference
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.asp import ASP
from raysync.paradigms.bsp import BSP
from raysync.paradigms.lagtuner import LagTuner
from raysync.paradigms.ssp import SSP

PARADIGMS: dict[str, type[Paradigm]] = {"bsp": BSP, "asp": ASP, "ssp": SSP, "lagtuner": LagTuner}


def make(name: str, /, **parameters: Any) -> Paradigm:
    """Build a paradigm.

    Args:
        name: a key of `PARADIGMS`, or `package.module:Class` of the user's own `@dataclass` subclass of `Paradigm`.
        parameters: those of its constructor; types and ranges are those of its annotations.

    Raises:
        ConfigError: unknown name or parameter (with the nearest one), or a value that is not allowed.
    """
    cls = _class(name)
    names = [field.name for field in fields(cls) if field.init]
    for parameter in parameters:
        if parameter not in names:
            if not names:
                raise ConfigError(f"paradigm {name}: takes no parameters, got {parameter!r}.")
            raise unknown_name("parameter", parameter, names, where=f"paradigm {name}")
    try:
        paradigm = TypeAdapter(cls).validate_python(parameters)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # a check of several parameters together, in __post_init__
            raise ConfigError(f"paradigm {first['ctx']['error']}") from error
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"paradigm {name}: {where}: {first['msg']}, got {first['input']!r}.") from error
    assert isinstance(paradigm, Paradigm)
    return paradigm


def _class(name: str) -> type[Paradigm]:
    if ":" not in name:
        if name not in PARADIGMS:
            raise unknown_name("paradigm", name, PARADIGMS)
        return PARADIGMS[name]
    cls = load_reference(name, f"paradigm {name}")
    if not (isinstance(cls, type) and issubclass(cls, Paradigm) and "__dataclass_params__" in vars(cls)):
        raise ConfigError(f"paradigm {name!r} is not a @dataclass that extends raysync.Paradigm.")
    return cls
