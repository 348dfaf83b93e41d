"""Read an experiment file: apply overrides and a profile, validate, and explain mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from raysync.config.base import ROW_SETTINGS, ParadigmChoice, is_within
from raysync.config.bounded_file import read_text
from raysync.config.checkpoint_settings import is_absolute
from raysync.config.experiment import Experiment
from raysync.config.profiles import PROFILE_SETTINGS, load_profile
from raysync.config.secret_masking import masked
from raysync.config.traces import resolve_traces
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError, unknown_name

MOST_BYTES = 1 << 24  # the file of a record has the numbers of its traces
LONGEST_SHOWN = 300  # the most characters of a value in an error message
# the files beside a recorded experiment, of a run or a sweep
RECORD_FILES = ("journal.jsonl", "origin.yaml")


def load(path: Path, overrides: Iterable[str] = (), *, recorded: bool = False) -> Experiment:
    """Read an experiment file.

    Args:
        path: a YAML file. The traces that it names are relative to its folder.
        overrides: `a.b=value` in YAML. An item of a list is named by its index,
            `workers.0.speed=0.5`, or all of them by a star: `workers.*.speed=0.5`.
        recorded: keep a record's absolute output folders. Otherwise they are left out, since
            whoever repeats the run has others.

    Raises:
        ConfigError: the file is missing, not YAML, or a setting is not allowed.
    """
    text = read_text(path, MOST_BYTES)
    is_repeated = not recorded and any((path.parent / name).is_file() for name in RECORD_FILES)
    return parse(
        text, overrides, source=str(path), folder=path.parent, keeps_output=not is_repeated
    )


def parse(
    text: str,
    overrides: Iterable[str] = (),
    *,
    source: str,
    prefix: str = "--set",
    folder: Path = Path(),
    keeps_output: bool = True,
) -> Experiment:
    """Validate the experiment in a YAML text.

    Traces in the text are relative to `folder`, traces in overrides to the working directory. A
    profile among the overrides replaces the file's profile and its settings; then the other
    overrides are applied. Errors begin with `source`, and of overrides with `prefix`.
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
    if not keeps_output:
        settings = _without_output(settings)
    resolve_traces(settings, folder)
    overrides = list(overrides)
    profiles = [override for override in overrides if override.startswith("profile=")]
    for override in profiles:
        _override(settings, override, prefix)
    if not profiles:
        settings = _with_profile(settings, source)
    elif settings["profile"] is not None:
        settings = _replaced(
            settings, load_profile(str(settings["profile"]), f"{prefix} {profiles[-1]}")
        )
    for override in overrides:
        _override(settings, override, prefix)
    return _validate(settings, source)


def validate(settings: Mapping[str, Any], *, source: str = "experiment") -> Experiment:
    """Validate an experiment of plain data.

    Raises:
        ConfigError: it names the path of the first bad setting, its value, and what is allowed.
    """
    return _validate(_with_profile(dict(settings), source), source)


def _without_output(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out absolute output folders."""
    portable = dict(settings)
    if is_absolute(portable.get("output", "")):
        del portable["output"]
    checkpoint = portable.get("checkpoint")
    if isinstance(checkpoint, dict) and is_absolute(checkpoint.get("output", "")):
        portable["checkpoint"] = {name: checkpoint[name] for name in checkpoint if name != "output"}
    return portable


def _with_profile(settings: dict[str, Any], source: str) -> dict[str, Any]:
    name = settings.get("profile")
    if name is None:
        return settings
    profile = load_profile(str(name), f"{source}: profile")
    if twice := sorted(_setting_names(profile) & _setting_names(settings)):
        raise ConfigError(
            f"{source}: both profile {name} and the file set {' and '.join(twice)}; leave out one."
            f"\nTo change a part of a profile: --set {twice[0]}...=VALUE."
        )
    return _replaced(settings, profile)


def _replaced(settings: dict[str, Any], profile: dict[str, Any]) -> dict[str, Any]:
    """Replace settings by a profile's; other settings of the Ray cluster stay."""
    cluster = settings.get("cluster")
    if isinstance(cluster, dict) and isinstance(profile.get("cluster"), dict):
        profile = profile | {"cluster": cluster | profile["cluster"]}
    return settings | profile


def _setting_names(settings: Mapping[str, Any]) -> set[str]:
    """Return the settings' names, with the Ray cluster's one by one."""
    cluster = settings.get("cluster")
    inner = {f"cluster.{name}" for name in cluster} if isinstance(cluster, dict) else set()
    return (set(settings) - {"cluster"}) | inner


def _override(settings: dict[str, Any], override: str, prefix: str) -> None:
    where = f"{prefix} {masked(override)!r}"
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"{where}: write it as key=value or a.b=value.")
    _put(settings, path.strip(), lambda: read_yaml(text, f"{prefix} {masked(override)}"), where)


def _put(settings: dict[str, Any], path: str, value_of: Callable[[], Any], where: str) -> None:
    *parents, last = path.split(".")
    # the keys of these two are paths themselves: update.lr
    if parents[:1] == ["sweep"] and parents[1:2] in (["grid"], ["sample"]):
        parents, last = parents[:2], ".".join([*parents[2:], last])
    blocks: list[Any] = [settings]
    for part in parents:
        blocks = [inner for block in blocks for inner in _enter(block, part, where)]
    for block in blocks:
        value = value_of()  # a separate value for each
        if isinstance(block, list):
            for index in _indices(block, last, where):
                block[index] = value
        elif isinstance(block, dict):
            block[last] = value
        else:
            raise ConfigError(f"{where}: {_repr(block)} holds no {last!r}.")


def _enter(block: Any, part: str, where: str) -> list[Any]:
    if isinstance(block, list):
        return [block[index] for index in _indices(block, part, where)]
    if isinstance(block, dict):
        inner = block.get(part)
        # a name becomes a block: `paradigm: ssp` and --set paradigm.staleness=3
        if inner is None or isinstance(inner, str):
            block[part] = {} if inner is None else {"name": inner}
        return [block[part]]
    raise ConfigError(f"{where}: {_repr(block)} holds no {part!r}.")


def _indices(items: list[Any], part: str, where: str) -> Iterable[int]:
    if part == "*":
        return range(len(items))
    if not part.isdecimal() or int(part) >= len(items):
        raise ConfigError(
            f"{where}: {part!r} is not an index into a list of {len(items)}: 0 to {len(items) - 1},"
            " or * for all."
        )
    return [int(part)]


def row_of(experiment: Experiment, choice: ParadigmChoice, source: str = "") -> Experiment:
    """Return the experiment of one row of a comparison: of this paradigm, with its own settings.

    What another row has set does not count, as where an experiment is read from that row's record.

    Raises:
        ConfigError: the paradigm's `set` does not fit; the message begins with `source`.
    """
    experiment = common_of(experiment)
    if choice.set is None:
        return experiment.model_copy(update={"paradigm": choice})
    source = source or f"paradigm {choice.name}: set"
    row = _changed(experiment, choice.set, source)
    if (experiment.local is None) is not (row.local is None) and "update" not in choice.set:
        raise ConfigError(
            f"{source}: local: give update, too: the update rule of the other rows is"
            f" {'that of gradients' if experiment.local is None else 'the outer step'}."
        )
    plain = experiment.model_dump(mode="json")
    former = choice.instead_of or {
        path: reduce(getitem, path.split("."), plain)
        for path in ROW_SETTINGS
        if any(is_within(changed, path) for changed in choice.set)
    }
    own = choice.model_copy(update={"instead_of": former})
    return row.model_copy(update={"paradigm": own})


def common_of(experiment: Experiment) -> Experiment:
    """Return the experiment of a row with the settings that it has in common with other rows."""
    choice = experiment.paradigm
    if choice.instead_of is None:
        return experiment
    common = _changed(experiment, choice.instead_of, "common settings")
    return common.model_copy(update={"paradigm": choice.model_copy(update={"instead_of": None})})


def _changed(experiment: Experiment, changes: Mapping[str, Any], source: str) -> Experiment:
    """Change settings by their paths; defaults stay defaults."""
    if not changes:
        return experiment
    settings = experiment.model_dump(mode="json", exclude_unset=True)
    for path, value in changes.items():
        _put(settings, path, partial(deepcopy, value), f"{source}: {path}")
    return _validate_alone(settings, source)


def _validate(settings: dict[str, Any], source: str) -> Experiment:
    experiment = _validate_alone(settings, source)
    for where, choice in experiment.named_paradigms():
        row_of(experiment, choice, f"{source}: {where}.set")
    return experiment


def _validate_alone(settings: dict[str, Any], source: str) -> Experiment:
    try:
        return Experiment.model_validate(settings)
    except ValidationError as error:
        profile = settings.get("profile")
        first = error.errors()[0]["loc"][:1]
        is_of_profile = profile is not None and first in [(name,) for name in PROFILE_SETTINGS]
        explained = _explain(error, f"{source}, profile {profile}" if is_of_profile else source)
        raise ConfigError(masked(str(explained))) from error


def _explain(error: ValidationError, source: str) -> ConfigError:
    first = error.errors()[0]
    path, model = _in_file(first["loc"])
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    setting = "".join(parts).lstrip(".")
    where = f"{source}: {setting}" if setting else source
    if first["type"] == "extra_forbidden":
        if elsewhere := _paths_of(setting.removesuffix(str(path[-1])), path[-1], model):
            return ConfigError(
                f"{where}: unknown setting {path[-1]!r}; did you mean {' or '.join(elsewhere)}?"
            )
        return unknown_name("setting", path[-1], model.model_fields, where=where)
    if first["type"] == "union_tag_invalid":
        kinds = [kind.strip(" '") for kind in first["ctx"]["expected_tags"].split(",")]
        return unknown_name("kind", first["ctx"]["tag"], kinds, where=where)
    if first["type"] == "union_tag_not_found":
        *kinds, last = sorted(
            kind
            for fault in _models_in(Experiment.model_fields[str(path[0])].annotation)
            for kind in get_args(fault.model_fields["kind"].annotation)
        )
        return ConfigError(
            f"{where}: give its kind: {', '.join(kinds)} or {last}; got {_repr(first['input'])}."
        )
    if first["type"] == "value_error":
        return ConfigError(f"{where}: {first['ctx']['error']}")
    if first["type"] == "tuple_type":
        return ConfigError(f"{where}: must be a list, [..., ...]; got {_repr(first['input'])}.")
    if first["type"] == "model_type":
        return ConfigError(
            f"{where}: must be settings, {{name: value, ...}}; got {_repr(first['input'])}."
        )
    value = "" if first["type"] == "missing" else f"; got {_repr(first['input'])}"
    return ConfigError(f"{where}: {first['msg']}{value}.")


def _repr(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number without bounds"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _paths_of(path: str, name: str | int, model: type[BaseModel]) -> list[str]:
    """List the settings of this name in the blocks at `path`: `update.lr`, `workers.*.speed`."""
    return [
        f"{path}{block}{'.*' if get_origin(field.annotation) is tuple else ''}.{name}"
        for block, field in model.model_fields.items()
        if any(name in inner.model_fields for inner in _models_in(field.annotation))
    ]


def _in_file(location: Iterable[str | int]) -> tuple[list[str | int], type[BaseModel]]:
    """Translate a location of pydantic to the file's path, and the model of its block."""
    path: list[str | int] = []
    model: type[BaseModel] = Experiment
    inner: list[type[BaseModel]] = [Experiment]  # the models of the present block, or its items
    for part in location:
        # pydantic inserts the kind of a fault after its index
        if isinstance(part, str) and len(inner) > 1:
            inner = [
                fault for fault in inner if part in get_args(fault.model_fields["kind"].annotation)
            ]
            continue
        path.append(part)
        if isinstance(part, str):
            model = inner[0] if inner else model
            inner = (
                _models_in(model.model_fields[part].annotation)
                if part in model.model_fields
                else []
            )
    return path, model


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """List the model classes in `tuple[Model, ...]`, `A | B` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
