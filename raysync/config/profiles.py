"""Cluster profiles: workers and network of a known cluster, to be named in any experiment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.references import may_import

BROUGHT = {"workers", "network", "cluster"}
"""The settings of an experiment that a profile may hold, beside `about`, a text."""


def profiles() -> dict[str, str]:
    """Name of each profile that comes with raysync -> what it is and where its figures are from."""
    return {name: _read(file, name)["about"].strip() for name, file in sorted(_shelf())}


def load_profile(name: str, where: str) -> dict[str, Any]:
    """The settings that a profile brings.

    Args:
        name: of one that comes with raysync (`experiments/clusters`), or the path of a file: with a
            `/`, or ending in .yaml.
        where: path of the setting, for the error.

    Raises:
        ConfigError: there is none of that name, or it is no profile.
    """
    if not may_import():
        raise ConfigError(
            f"{where}: a record holds what its profile brought, and names none; got {name!r}."
        )
    shelf = dict(_shelf())
    if name in shelf:
        settings = _read(shelf[name], name)
    elif "/" in name or name.endswith(".yaml"):
        settings = _read(Path(name).expanduser(), name)
        _from_its_folder(settings, Path(name).expanduser().parent)
    else:
        raise unknown_name("cluster profile", name, shelf, where=where)
    if unknown := settings.keys() - BROUGHT - {"about"}:
        first = min(unknown, key=str)
        raise unknown_name("setting", first, BROUGHT | {"about"}, where=f"profile {name}: {first}")
    return {key: settings[key] for key in BROUGHT & settings.keys()}


def _shelf() -> Iterator[tuple[str, Traversable]]:
    folder = files("raysync") / "clusters"
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name.endswith(".yaml"):
            yield file.name.removesuffix(".yaml"), file


def _read(file: Traversable | Path, name: str) -> dict[str, Any]:
    try:
        settings = read_yaml(file.read_text(encoding="utf-8"), f"profile {name}")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(f"profile {name}: cannot be read ({reason}).") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"profile {name}: a mapping with {', '.join(sorted(BROUGHT))} and about is expected."
        )
    return settings


def _from_its_folder(settings: dict[str, Any], folder: Path) -> None:
    """Trace files that a profile names lie beside it."""
    groups = settings.get("workers")
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict) and isinstance(group.get("trace"), str):
            group["trace"] = str(folder / Path(group["trace"]).expanduser())
