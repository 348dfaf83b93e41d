"""The origin of a result: configuration, environment, seeds, and commands that repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysync.config import Experiment, common_of
from raysync.config.yaml_reading import write_yaml
from raysync.record.reader import RunRecord
from raysync.record.storage import display_name
from raysync.record.writer import MODEL_FILES
from raysync.results.collection import Collection
from raysync.results.columns import target_text
from raysync.results.grouping import setting_text, workers_text

MOST_COMMANDS = 3  # with more runs, a loop over their folders replaces a command for each

ENGINES = {"ray": "on Ray, real seconds", "virtual": "in virtual time"}


def title(collection: Collection) -> str:
    """Describe model, workers and repeats in a line, without what the scenarios vary."""
    experiment, varied = collection.runs[0].record.config, _varied(collection)
    parts = [] if {"model", "data"} & varied else [experiment.subject]
    if not {"workers", "profile", "network"} & varied:
        parts.append(_workers_text(collection))
    if "engine" not in varied:
        parts.append(ENGINES[experiment.engine])
    all_seeds = seeds(collection)
    if len(all_seeds) == 1:
        parts.append(f"seed {all_seeds[0]}")
    else:
        parts.append(f"{len(all_seeds)} seeds ({_range_text(all_seeds)})")
    return ", ".join(parts)


def seeds(collection: Collection) -> list[int]:
    return sorted({run.seed for run in collection.runs})


def configuration(collection: Collection) -> dict[str, str]:
    """Return setting -> value in words, or that the scenarios vary it."""
    experiment, varied = common_of(collection.runs[0].record.config), _varied(collection)
    timing = " (timing only: nothing is trained)" if experiment.timing == "only" else ""
    parameters = collection.runs[0].record.summary.get("parameters") or 0
    settings = {
        "engine": f"{experiment.engine}{timing}",
        **_trained(collection.runs[0].record, f"{parameters:,} parameters"),
        "workers": _workers_text(collection),
        "network": _block_text(experiment, "network"),
        "faults": (
            f"{len(experiment.faults)}: {' + '.join(fault.kind for fault in experiment.faults)}"
            if experiment.faults
            else "none"
        ),
        "batch size": _batch_sizes_text(experiment),
        "update": _block_text(experiment, "update"),
        **({} if experiment.local is None else {"local": _block_text(experiment, "local")}),
        "workload": _block_text(experiment, "workload"),
        "evaluation": _block_text(experiment, "evaluation"),
        "target": target_text(collection.criteria(collection.runs[0].scenario)) or "none",
        "seeds": ", ".join(map(str, seeds(collection))),
    }
    if shared := transports(collection):
        settings["transport"] = shared
    aliases = {
        "engine": {"timing"},
        "workers": {"profile"},
        "network": {"profile"},
        "target": {"target.metric", "target.at_least", "target.at_most"},
    }
    for name in settings:
        if ({name.replace(" ", "_")} | aliases.get(name, set())) & varied:
            settings[name] = "varies, see the scenarios"
    return settings


def _trained(record: RunRecord, size: str) -> dict[str, str]:
    """Return what was trained; of a task of the user's own, what it says of itself."""
    experiment, summary = record.config, record.summary
    if not experiment.names_a_task:
        model = setting_text(experiment.model.model_dump())
        return {"model": f"{model}, {size}", "data": _block_text(experiment, "data")}
    dealt = experiment.data.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    data = ", ".join(filter(None, (summary.get("dataset"), _flow(dealt))))
    return {
        "task": experiment.subject,
        "model": f"{summary.get('model') or 'its own'}, {size}",
        "data": data or "its own",
    }


def _workers_text(collection: Collection) -> str:
    experiment = collection.runs[0].record.config
    profile = collection.runs[0].record.summary.get("profile")
    count = experiment.worker_count
    of_profile = f"; profile {profile}" if profile else ""
    return f"{count} worker{'s' * (count > 1)} ({workers_text(experiment)}{of_profile})"


def _block_text(experiment: Experiment, name: str) -> str:
    """Return a block of settings in a line: its name, and changes from the defaults."""
    block = getattr(experiment, name)
    always = {"name", "optimizer", "lr"} & type(block).model_fields.keys()
    named = block.model_dump(mode="json", include=always)
    settings = _with_integers(named | block.model_dump(mode="json", exclude_defaults=True))
    if "name" in settings:
        return setting_text(settings)
    return _flow(settings) or "as the defaults"


def _flow(settings: dict[str, Any]) -> str:
    return write_yaml(settings, width=10_000, flow=True).strip().strip("{}")


def _with_integers(value: Any) -> Any:
    """Return data with integers for whole numbers."""
    if isinstance(value, dict):
        return {name: _with_integers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_integers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _batch_sizes_text(experiment: Experiment) -> str:
    """Return the batch sizes in words: `32 samples a worker; 16 in slow`."""
    exceptions = [
        f"; {group.batch_size} in {group.name}"
        for group in experiment.workers
        if group.batch_size not in (None, experiment.batch_size)
    ]
    return f"{experiment.batch_size} samples a worker{''.join(exceptions)}"


def transports(collection: Collection) -> str:
    """List the actors by transport: `shared-memory: server-0, fast-0; object-ref: slow-0`.

    Returns "" if none uses shared memory, or records are damaged.
    """
    lines = dict.fromkeys(
        _transports_text(run.record.environment.get("places")) for run in collection.runs
    )
    return " | ".join(line or "object-ref" for line in lines) if any(lines) else ""


def _transports_text(places: object) -> str:
    actors: dict[str, list[str]] = {}
    for name, place in places.items() if isinstance(places, dict) else ():
        transport = place.get("transport") if isinstance(place, dict) else None
        actors.setdefault(str(transport or "object-ref"), []).append(str(name))
    if set(actors) <= {"object-ref"}:
        return ""
    if len(actors) == 1:
        return f"{next(iter(actors))} (all)"
    return "; ".join(
        f"{transport}: {', '.join(names)}"
        for transport, names in sorted(actors.items(), reverse=True)
    )


def _varied(collection: Collection) -> set[str]:
    """Return the first part of each setting that the scenarios vary."""
    parts = [part for run in collection.runs for part in run.scenario.split(", ")]
    return {part.partition("=")[0].partition(".")[0] for part in parts if "=" in part}


def environment(collection: Collection) -> str:
    """Return versions and machine in a line, or in several for several machines."""
    lines = dict.fromkeys(_environment_text(run.record.environment) for run in collection.runs)
    return "; ".join(lines)


def _environment_text(environment: dict[str, Any]) -> str:
    versions = environment.get("packages", {}).items()
    packages = ", ".join(f"{name} {version}" for name, version in versions if version)
    python, platform = environment.get("python", "?"), environment.get("platform", "?")
    return f"Python {python}, {packages} on {platform}"


def dates(collection: Collection) -> str:
    """Return when the runs began: "2026-11-21", or "2026-11-21 to 2026-11-23"."""
    days = sorted(str(run.record.environment.get("started", "?"))[:10] for run in collection.runs)
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def commands(collection: Collection) -> list[str]:
    """Return the commands that repeat the runs and the report, and export a single run's model."""
    report = shlex.join(["raysync", "report", *map(display_name, collection.paths)])
    if collection.sweep is not None:
        command = "sweep" if collection.sweep.experiment.switch_search is None else "switch-search"
        file = display_name(collection.sweep.path / "sweep.yaml")
        return [shlex.join(["raysync", command, file]), report]
    typed = (_typed_command(run.record.environment.get("command")) for run in collection.runs)
    known = dict.fromkeys(filter(None, typed))
    return [*(known or _run_commands(collection)), report, *_export_commands(collection)]


def _typed_command(words: object) -> str | None:
    """Return the command as the user typed it; None: the run began in Python, or in an actor."""
    if not isinstance(words, list) or not words:
        return None
    *_, folder, name = ("", *Path(str(words[0])).parts)
    if name == "raysync":
        return shlex.join(["raysync", *map(str, words[1:])])
    if (folder, name) == ("raysync", "__main__.py"):
        return shlex.join(["python", "-m", "raysync", *map(str, words[1:])])
    return None


def _run_commands(collection: Collection) -> list[str]:
    """Return commands that repeat the runs from the records' own files."""
    files = [str(run.record.path / "config.yaml") for run in collection.runs]
    if len(files) <= MOST_COMMANDS:
        return [shlex.join(["raysync", "run", file]) for file in files]
    folders = dict.fromkeys(str(Path(file).parents[1]) for file in files)
    return [
        f'for file in {shlex.quote(folder)}/*/config.yaml; do raysync run "$file"; done'
        for folder in folders
    ]


def _export_commands(collection: Collection) -> list[str]:
    paths = [run.record.path for run in collection.runs]
    if len(paths) != 1 or not (paths[0] / MODEL_FILES["final"]).is_file():
        return []
    return [shlex.join(["raysync", "export", display_name(paths[0]), "model.safetensors"])]


def _range_text(rising: Sequence[int]) -> str:
    if len(rising) > 2 and list(rising) == list(range(rising[0], rising[-1] + 1)):
        return f"{rising[0]} to {rising[-1]}"
    return ", ".join(map(str, rising))
