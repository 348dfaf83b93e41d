"""Cluster profiles: the workers and network of a known cluster, which any experiment can name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from raysync.config.bounded_file import path_of, read_text
from raysync.config.traces import resolve_traces
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import may_import

MOST_BYTES = 1 << 24  # the most that a profile has
# a profile can set these, beside its description `about`
PROFILE_SETTINGS = {"workers", "network", "cluster"}


def profiles() -> dict[str, str]:
    """Return the built-in profiles' names -> their descriptions, with the source of the figures."""
    return {name: _read(file, name)["about"].strip() for name, file in sorted(_built_in())}


def load_profile(name: str, where: str) -> dict[str, Any]:
    """Load the settings of a profile.

    Args:
        name: a profile of raysync (`experiments/clusters`), or a path: with a `/`, or ending in
            .yaml.
        where: the setting's path, for the error.

    Raises:
        ConfigError: there is no such profile, or the file is none.
    """
    if not may_import():
        raise ConfigError(
            f"{where}: a record contains the settings of its profile, and names none; got {name!r}."
        )
    built_in = dict(_built_in())
    if name in built_in:
        settings = _read(built_in[name], name)
    elif "/" in name or name.endswith(".yaml"):
        path = path_of(name)
        settings = _read(path, name)
        resolve_traces(settings, path.parent)
    else:
        raise unknown_name("cluster profile", name, built_in, where=where)
    if unknown := settings.keys() - PROFILE_SETTINGS - {"about"}:
        first = min(unknown, key=str)
        raise unknown_name(
            "setting", first, PROFILE_SETTINGS | {"about"}, where=f"profile {name}: {first}"
        )
    return {key: settings[key] for key in PROFILE_SETTINGS & settings.keys()}


def _built_in() -> Iterator[tuple[str, Traversable]]:
    folder = files("raysync") / "clusters"
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name.endswith(".yaml"):
            yield file.name.removesuffix(".yaml"), file


def _read(file: Traversable | Path, name: str) -> dict[str, Any]:
    if isinstance(file, Path):
        try:
            text = read_text(file, MOST_BYTES)
        except ConfigError as error:
            raise ConfigError(f"profile {name}{str(error).removeprefix(str(file))}") from error
    else:  # the package is an archive
        text = file.read_text(encoding="utf-8")
    settings = read_yaml(text, f"profile {name}")
    if not isinstance(settings, dict):
        allowed = ", ".join(sorted(PROFILE_SETTINGS))
        raise ConfigError(f"profile {name}: must be a mapping with {allowed} and about.")
    return settings
