"""From the text of an experiment file, with overrides and a cluster profile, to a validated
experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from raysync.config.experiment import Experiment
from raysync.config.masking import masked
from raysync.config.profiles import BROUGHT, load_profile
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError, unknown_name

LONGEST_SHOWN = 300
"""Characters of a value that an error shows; a list may have thousands."""


def load(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read an experiment file.

    Args:
        path: of a YAML file.
        overrides: `a.b=value`; the value is YAML. A list is entered by index,
            `workers.0.speed=0.5`, or in all its items: `workers.*.speed=0.5`.

    Raises:
        ConfigError: there is no such file, it is not YAML, or a setting is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not a text file'})."
        ) from error
    return parse(text, overrides, source=str(path))


def parse(
    text: str, overrides: Iterable[str] = (), *, source: str, said: str = "--set"
) -> Experiment:
    """The experiment in a YAML text; in errors, `source` names it, and `said` is where the
    overrides are from.

    A profile among the overrides takes the place of the file's own, and what it brings that of what
    the file gives; the other overrides come after.
    """
    settings = read_yaml(text, source)
    if settings is None or settings == {}:
        raise ConfigError(
            f"{source}: it is empty; an experiment file must set something, such as model: mlp."
        )
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{source}: an experiment file is a mapping of settings, got {type(settings).__name__}."
        )
    overrides = list(overrides)
    chosen = [override for override in overrides if override.startswith("profile=")]
    for override in chosen:
        _override(settings, override, said)
    if not chosen:
        settings = _with_profile(settings, source)
    elif settings["profile"] is not None:
        settings = _laid_over(
            settings, load_profile(str(settings["profile"]), f"{said} {chosen[-1]}")
        )
    for override in overrides:
        _override(settings, override, said)
    return _validate(settings, source)


def validate(settings: Mapping[str, Any], *, source: str = "experiment") -> Experiment:
    """The experiment that plain data describes.

    Raises:
        ConfigError: naming the path of the first setting that is not allowed, its value, and what
            is.
    """
    return _validate(_with_profile(dict(settings), source), source)


def _validate(settings: dict[str, Any], source: str) -> Experiment:
    try:
        return Experiment.model_validate(settings)
    except ValidationError as error:
        profile = settings.get("profile")
        brought = profile is not None and error.errors()[0]["loc"][:1] in [
            (name,) for name in BROUGHT
        ]
        explained = _explain(error, f"{source}, profile {profile}" if brought else source)
        raise ConfigError(masked(str(explained))) from error


def _with_profile(settings: dict[str, Any], source: str) -> dict[str, Any]:
    """The settings with those of the profile that they name."""
    name = settings.get("profile")
    if name is None:
        return settings
    brought = load_profile(str(name), f"{source}: profile")
    if twice := sorted(_names(brought) & _names(settings)):
        raise ConfigError(
            f"{source}: profile {name} brings {' and '.join(twice)}, and the file gives that, too;"
            f" leave out one.\nA part can be changed: --set {twice[0]}...=VALUE."
        )
    return _laid_over(settings, brought)


def _laid_over(settings: dict[str, Any], brought: dict[str, Any]) -> dict[str, Any]:
    """Settings with those of a profile over them; what else the file says of the Ray
    cluster stays.
    """
    cluster = settings.get("cluster")
    if isinstance(cluster, dict) and isinstance(brought.get("cluster"), dict):
        brought = brought | {"cluster": cluster | brought["cluster"]}
    return settings | brought


def _names(settings: Mapping[str, Any]) -> set[str]:
    """What settings give, those of the Ray cluster one by one."""
    cluster = settings.get("cluster")
    inner = {f"cluster.{name}" for name in cluster} if isinstance(cluster, dict) else set()
    return (set(settings) - {"cluster"}) | inner


def _override(settings: dict[str, Any], override: str, said: str) -> None:
    named = f"{said} {masked(override)!r}"
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"{named}: write it as key=value or a.b=value.")
    *parents, last = path.strip().split(".")
    if parents[:1] == ["sweep"] and parents[1:2] in (
        ["grid"],
        ["sample"],
    ):  # their keys are paths themselves: update.lr
        parents, last = parents[:2], ".".join([*parents[2:], last])
    places: list[Any] = [settings]
    for part in parents:
        places = [inner for here in places for inner in _enter(here, part, named)]
    for here in places:
        value = read_yaml(text, f"{said} {masked(override)}")  # each its own
        if isinstance(here, list):
            for index in _indices(here, last, named):
                here[index] = value
        elif isinstance(here, dict):
            here[last] = value
        else:
            raise ConfigError(f"{named}: {_shown(here)} holds no {last!r}.")


def _enter(here: Any, part: str, named: str) -> list[Any]:
    if isinstance(here, list):
        return [here[index] for index in _indices(here, part, named)]
    if isinstance(here, dict):
        inner = here.get(part)
        if inner is None or isinstance(
            inner, str
        ):  # `paradigm: ssp` and --set paradigm.staleness=3
            here[part] = {} if inner is None else {"name": inner}
        return [here[part]]
    raise ConfigError(f"{named}: {_shown(here)} holds no {part!r}.")


def _indices(items: list[Any], part: str, named: str) -> Iterable[int]:
    if part == "*":
        return range(len(items))
    if not part.isdecimal() or int(part) >= len(items):
        raise ConfigError(
            f"{named}: {part!r} is not an index into a list of {len(items)}: 0 to {len(items) - 1},"
            " or * for all."
        )
    return [int(part)]


def _explain(error: ValidationError, source: str) -> ConfigError:
    first = error.errors()[0]
    path, model = _in_file(first["loc"])
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(
        "."
    )
    where = f"{source}: {place}" if place else source
    if first["type"] == "extra_forbidden":
        if inside := _deeper(place.removesuffix(str(path[-1])), path[-1], model):
            return ConfigError(
                f"{where}: unknown setting {path[-1]!r}; did you mean {' or '.join(inside)}?"
            )
        return unknown_name("setting", path[-1], model.model_fields, where=where)
    if first["type"] == "union_tag_invalid":
        kinds = [kind.strip(" '") for kind in first["ctx"]["expected_tags"].split(",")]
        return unknown_name("kind", first["ctx"]["tag"], kinds, where=where)
    if first["type"] == "union_tag_not_found":
        known = sorted(
            kind
            for one in _models_in(Experiment.model_fields[str(path[0])].annotation)
            for kind in get_args(one.model_fields["kind"].annotation)
        )
        return ConfigError(
            f"{where}: give its kind: {', '.join(known[:-1])} or {known[-1]}; got "
            f"{_shown(first['input'])}."
        )
    if first["type"] == "value_error":
        return ConfigError(f"{where}: {first['ctx']['error']}")
    if first["type"] == "tuple_type":
        return ConfigError(f"{where}: a list is wanted, [..., ...]; got {_shown(first['input'])}.")
    if first["type"] == "model_type":
        return ConfigError(
            f"{where}: settings are wanted, {{name: value, ...}}; got {_shown(first['input'])}."
        )
    given = "" if first["type"] == "missing" else f"; got {_shown(first['input'])}"
    return ConfigError(f"{where}: {first['msg']}{given}.")


def _shown(value: object) -> str:
    """The beginning of a value, as Python writes it."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number without bounds"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _deeper(place: str, name: str | int, model: type[BaseModel]) -> list[str]:
    """Where the blocks of the model at `place` have a setting of that name: `update.lr`,
    `workers.*.speed`.
    """
    return [
        f"{place}{block}{'.*' if get_origin(field.annotation) is tuple else ''}.{name}"
        for block, field in model.model_fields.items()
        if any(name in one.model_fields for one in _models_in(field.annotation))
    ]


def _in_file(location: Iterable[str | int]) -> tuple[list[str | int], type[BaseModel]]:
    """A place that pydantic gave as the file has it, and the model of the block around it.

    Pydantic puts the kind of a fault behind its index; the file does not.
    """
    path: list[str | int] = []
    model: type[BaseModel] = Experiment
    inside: list[type[BaseModel]] = [Experiment]
    for part in location:
        if isinstance(part, str) and len(inside) > 1:
            inside = [
                one for one in inside if part in get_args(one.model_fields["kind"].annotation)
            ]
            continue
        path.append(part)
        if isinstance(part, str):
            model = inside[0] if inside else model
            inside = (
                _models_in(model.model_fields[part].annotation)
                if part in model.model_fields
                else []
            )
    return path, model


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The model classes in `tuple[Model, ...]`, `A | B` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
