"""Folders of sweeps, whose trials run here one after the other."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import raysync
from raysync import config
from raysync.record.sweeps import RECORDS, TrialNote, trial_name, write_note, write_table


@dataclass(frozen=True)
class Trial:
    varied: dict[str, Any]
    """Setting -> value, as the sweep notes them."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What else its run differs in; the sweep does not know it."""
    stop_at: float | None = None
    """The progress at which Ctrl-C ends its run."""
    ended: bool = True
    error: str = ""
    """Why it has no record."""
    by: str = ""
    """The setting of the sweep that ended it."""


def write_sweep(folder: Path, settings: dict[str, Any], trials: list[Trial]) -> Path:
    """Run the trials of a sweep, and write its table."""
    (folder / "sweep.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    base = {key: value for key, value in settings.items() if key != "sweep"}
    for number, trial in enumerate(trials):
        name = trial_name(number)
        write_note(folder, TrialNote(name, trial.varied, trial.ended, trial.error, trial.by))
        if not trial.error:
            text = json.dumps(base | {"name": name, "output": str(folder / RECORDS)})
            changes = (trial.varied | trial.settings).items()
            overrides = [f"{key}={_text(value)}" for key, value in changes]
            run_until(trial.stop_at, config.parse(text, overrides, source=name))
    write_table(folder)
    return folder


def _text(value: Any) -> str:
    """The value of an override; a sweep notes what is no scalar as text."""
    return value if isinstance(value, str) else json.dumps(value)


def run_until(progress: float | None, experiment: Any) -> None:
    """Run an experiment, and end it by Ctrl-C at some progress; None: let it end."""

    def watch(measures):
        if progress is not None and measures.progress > progress and not measures.ended:
            raise KeyboardInterrupt

    try:
        raysync.run(experiment, watch=watch)
    except KeyboardInterrupt:
        assert progress is not None
