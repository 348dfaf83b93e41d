"""Callbacks: objects of the user with methods that a run calls."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from raysync.config import Experiment
from raysync.core.journal import Evaluation
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import call_checked, load_reference
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord
from raysync.users_code import users_code


@dataclass(frozen=True)
class RunStart:
    """A run that has just begun."""

    folder: Path  # the folder of the run's record
    group: str  # the name of its experiment, or of the sweep for a trial
    experiment: Experiment  # the resolved experiment, with this run's `paradigm` and `seed`
    began: datetime

    @property
    def name(self) -> str:
        """The folder's name, unique among runs: `20261122-102940-bsp-eeff`."""
        return self.folder.name


class Callback:
    """The methods of a callback: derive from it, or write any class with some of them.

    `raysync.run(..., callbacks=[...])` calls them in its own process. An error fails the run; its
    record is kept.

        class Print(raysync.Callback):
            def on_evaluation(self, evaluation, measures):
                print(f"{evaluation.progress:.0%}: {evaluation.metrics}")
    """

    def on_start(self, run: RunStart) -> None:
        """Called when the run's workers and its folder exist."""

    def on_evaluation(self, evaluation: Evaluation, measures: Measures) -> None:
        """Called with each row of `record.evaluations`, in their order.

        Args:
            evaluation: `mark`, `progress`, `version`, `at` (seconds since the run began), and
                `metrics`, a mapping of names to numbers.
            measures: of the run so far; training may have gone on since that evaluation.
        """

    def on_progress(self, measures: Measures) -> None:
        """Called with the run's measures, a few times a second, and at its end."""

    def on_end(self, record: RunRecord) -> None:
        """Called at every end of a run: see `record.summary["status"]`."""


METHODS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def name_of(callback: object) -> str:
    return f"{type(callback).__module__}:{type(callback).__qualname__}"


def check_callbacks(callbacks: Sequence[object], where: str = "callbacks") -> None:
    """Refuse callbacks that cannot be called; the `ConfigError` names the class or method."""
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise ConfigError(f"{where}: must be a list of objects, got {type(callbacks).__name__}.")
    for index, callback in enumerate(callbacks):
        place = f"{where}[{index}]"
        if isinstance(callback, type):
            raise ConfigError(f"{place}: give an object, {callback.__name__}(), not its class.")
        names = [name for name in dir(callback) if name.startswith("on_")]
        if not names:
            raise ConfigError(
                f"{place}: {type(callback).__name__} has none of the methods {', '.join(METHODS)}."
            )
        for name in names:
            if name not in METHODS:
                raise unknown_name("method", name, METHODS, where=f"{place}: {name_of(callback)}")
            _check_method(callback, name, place)


def _check_method(callback: object, name: str, place: str) -> None:
    expected = list(inspect.signature(getattr(Callback, name)).parameters)[1:]
    try:
        inspect.signature(getattr(callback, name)).bind(*expected)
    except TypeError as error:
        raise ConfigError(
            f"{place}: {name_of(callback)}.{name}({', '.join(expected)}): {error}."
        ) from error


def callbacks_of(experiment: Experiment) -> Iterator[object]:
    """Create the callbacks of an experiment file; raise `ConfigError` if one does not fit."""
    for index, choice in enumerate(experiment.callbacks):
        where = f"callbacks[{index}] {choice.name}"
        kind = load_reference(choice.name, where)
        with users_code(where):
            callback = call_checked(kind, where, choice.parameters, {})
        check_callbacks([callback], where)
        yield callback
