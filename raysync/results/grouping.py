"""Group runs by the settings that differ, in words: `model=lenet, profile=8-k80`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysync.config import Experiment, Stop, common_of
from raysync.config.base import value_text
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError
from raysync.record.reader import RunRecord

# names, places and observers; what repeats vary; and settings that are written otherwise
OF_NO_SCENARIO = (
    "name",
    "output",
    "profile",
    "paradigm",
    "paradigms",
    "seed",
    "seeds",
    "sweep",
    "switch_search",
    "target",
    "stop",
    "track",
    "keep",
    "published",
)

# settings without effect on measures
UNIMPORTANT = (
    "data.data_dir",
    "evaluation.margin",
    "checkpoint.output",
    "checkpoint.keep",
    "cluster.address",
    "cluster.dashboard",
    "cluster.placement_deadline_s",
)

# setting -> block that is abbreviated to a word: of a cluster profile, or faults
BLOCKS = {"workers": "cluster", "network": "cluster", "cluster": "cluster", "faults": "faults"}


def differences(records: Sequence[RunRecord]) -> list[str]:
    """Return each record's settings that differ from others, without paradigm and seed, or "".

    What a paradigm's own `set` changes is a part of the paradigm.
    """
    flat = [_flattened(common_of(record.config)) for record in records]
    varied = _varied(flat)
    alike: dict[str, list[dict[str, Any]]] = {}
    for record, settings in zip(records, flat, strict=True):
        for block in set(BLOCKS.values()):
            alike.setdefault(_block_word(record, block), []).append(settings)
    # a word -> settings in which records with this word differ, so that it is not enough
    unclear = {word: set(_varied(settings)) for word, settings in alike.items()}
    return [
        ", ".join(_differing_parts(record, settings, varied, unclear))
        for record, settings in zip(records, flat, strict=True)
    ]


def _varied(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys of settings that differ."""
    keys = dict.fromkeys(key for settings in flat for key in settings)
    return [key for key in keys if len({repr(settings.get(key)) for settings in flat}) > 1]


def _differing_parts(
    record: RunRecord,
    settings: Mapping[str, Any],
    varied: Sequence[str],
    unclear: Mapping[str, set[str]],
) -> list[str]:
    """Return one record's differing settings, with a word for cluster or faults if it is unique."""
    parts: dict[str, None] = {}
    for key in varied:
        head = key.partition(".")[0]
        if head in BLOCKS:
            word = _block_word(record, BLOCKS[head])
            # without a profile no word describes `network` and `cluster`
            if head in ("workers", "faults") or _profile(record) is not None:
                parts[word] = None
            if key not in unclear[word]:
                continue
        if key in settings:
            parts[f"{key.removesuffix('.name')}={setting_text(settings[key])}"] = None
    return list(parts)


def _block_word(record: RunRecord, block: str) -> str:
    """Abbreviate a cluster, or its faults, to a word."""
    if block == "faults":
        return f"faults={' + '.join(fault.kind for fault in record.config.faults) or 'none'}"
    profile = _profile(record)
    return f"profile={profile}" if profile else f"workers={workers_text(record.config)}"


def _profile(record: RunRecord) -> str | None:
    """Return the named profile; the recorded configuration has only its settings."""
    name = record.summary.get("profile")
    return None if name is None else str(name)


def workers_text(experiment: Experiment) -> str:
    """Return the worker groups in words: `2 fast + 1 slow`."""
    return " + ".join(f"{group.count} {group.name}" for group in experiment.workers)


def _flattened(experiment: Experiment) -> dict[str, Any]:
    """Flatten settings to path -> value; lists are values, except for workers and faults."""
    flat: dict[str, Any] = {}

    def enter(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                enter(f"{path}.{name}", inner)
        elif path in ("workers", "faults"):
            for index, inner in enumerate(value):
                enter(f"{path}.{index}", inner)
        elif path not in UNIMPORTANT:
            flat[path] = value

    for name, value in experiment.model_dump(mode="json", exclude=set(OF_NO_SCENARIO)).items():
        enter(name, value)
    stop = experiment.stop
    return flat | {
        "target": None if experiment.target is None else experiment.target.words,
        "stop": None if stop is None else stop_text(stop),
    }


def stop_text(stop: Stop) -> str:
    """Return what can end a run early in words: `after_s 0.6 + accuracy 0.9`."""
    settings = stop.model_dump(mode="json", exclude_defaults=True, exclude={"when"})
    parts = [f"{name} {value_text(value)}" for name, value in settings.items()]
    return " + ".join([*parts, *(goal.words for goal in stop.when)])


def setting_text(value: Any) -> str:
    """Abbreviate a value: `{name: mlp, hidden: [64]}` to `mlp(hidden=[64])`, 3.0 to 3."""
    if isinstance(value, str) and value.startswith("{"):
        value = _yaml(value)
    if isinstance(value, dict) and "name" in value:
        inner = {name: value_text(part) for name, part in value.items() if name != "name"}
        settings = ", ".join(f"{name}={text}" for name, text in inner.items())
        return f"{value['name']}({settings})" if settings else str(value["name"])
    if value is None or value != value:  # a table's NaN
        return "none"
    return value_text(value)


def _yaml(text: str) -> Any:
    try:
        return read_yaml(text, "a setting")
    except ConfigError:
        return text
