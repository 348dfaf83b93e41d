"""The import of classes and functions that experiment files name as `package.module:Name`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from raysync.errors import ConfigError, RaysyncError
from raysync.users_code import place_of

# An experiment file is a program, whose names are imported. A record may come from a stranger: it
# is read `without_imports`.
_may_import: ContextVar[bool] = ContextVar("may_import", default=True)


# Words in front of a colon in names that are no modules: of adapters, and of objects that a Python
# program gave. A module of that name is not imported.
WORDS = ("given", "hf", "lightning", "timm", "torchvision")


class NotTrusted(RaysyncError):
    """An import inside `without_imports`; the reader of the record catches it."""


def untrusted_error(name: str) -> ConfigError:
    """Create the error for a name that only a trusted record may import."""
    return ConfigError(
        f"{name} does not come with raysync, and importing it runs its code.\n"
        "If you trust the run folder: raysync replay RUN --trust, or raysync.load(RUN,"
        " trust=True)."
    )


@contextmanager
def without_imports() -> Iterator[None]:
    """Refuse imports, and reading the files that a file names, within the block."""
    before = _may_import.set(False)
    try:
        yield
    finally:
        _may_import.reset(before)


def may_import() -> bool:
    """Return whether the file being read is the user's program, not a record."""
    return _may_import.get()


def is_reference(text: str) -> bool:
    """Whether `load_reference` would import something by that name: nothing else is imported."""
    module, _, name = text.partition(":")
    is_name = all(part.isidentifier() for part in name.split("."))
    return bool(module) and module not in WORDS and is_name


def load_reference(reference: str, where: str) -> Any:
    """Import `package.module:Name`; Name may have dots.

    Raises:
        ConfigError: another form, no such module or name, or a failing import.
        NotTrusted: inside `without_imports`.
    """
    if not is_reference(reference):
        raise ConfigError(f"{where}: write it as package.module:Name, not {reference!r}.")
    module_name, _, name = reference.partition(":")
    if not may_import():
        raise NotTrusted(reference)
    try:
        thing: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(module_name, error, where) from error
        raise ConfigError(
            f"{where}: there is no module {module_name!r}\n"
            "Allowed: package.module:Name, importable from the directory you started in."
        ) from error
    except Exception as error:  # anything that the user's module raises when it is imported
        raise _broken(module_name, error, where) from error
    for part in name.split("."):
        if not hasattr(thing, part):
            raise ConfigError(f"{where}: module {module_name!r} has no {name!r}.")
        thing = getattr(thing, part)
    return thing


def _broken(module_name: str, error: Exception, where: str) -> ConfigError:
    if isinstance(error, SyntaxError):  # its line is in the error, not in the traceback
        place, reason = f"{error.filename}:{error.lineno}", error.msg
    else:
        place, reason = place_of(error), str(error)
    return ConfigError(
        f"{where}: module {module_name!r} cannot be imported: {type(error).__name__}: {reason}"
        f" ({place})."
    )


def call_checked(
    function: Callable[..., Any],
    where: str,
    arguments: Mapping[str, Any],  # the user's
    offered: Mapping[str, Any],  # passed where the function has parameters of these names
) -> Any:
    """Call a function that the user named; a ConfigError says why its arguments do not fit."""
    if not callable(function):
        raise ConfigError(f"{where}: must be a function, not {type(function).__name__}.")
    signature = inspect.signature(function)
    passed = {
        name: value for name, value in offered.items() if name in signature.parameters
    } | dict(arguments)
    try:
        signature.bind(**passed)
    except TypeError as error:
        free = [name for name in signature.parameters if name not in offered]
        raise ConfigError(
            f"{where}: {error}. It takes: {', '.join(free) or 'no parameters'}."
        ) from error
    return function(**passed)
