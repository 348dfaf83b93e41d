"""Callbacks: objects of the user whose methods are called while a run goes on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from raysync.config import Experiment
from raysync.core.journal import Evaluation
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import call, load_reference
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord
from raysync.users_code import users_code


@dataclass(frozen=True)
class RunStart:
    """A run that has just begun."""

    folder: Path
    """The folder of its record."""
    group: str
    """The name of its experiment; of a trial, that of its sweep."""
    experiment: Experiment
    """The resolved experiment; its `paradigm` and `seed` are those of this run."""
    began: datetime
    """When the run was requested."""

    @property
    def name(self) -> str:
        """The name of the folder, which no other run has: `20261122-102940-bsp-eeff`."""
        return self.folder.name


class Callback:
    """The methods that a callback can have: derive from it, or write any class that has some of
    them. `raysync.run(..., callbacks=[...])` calls them in the process that called it.

        class Print(raysync.Callback):
            def on_evaluation(self, evaluation, measures):
                print(f"{evaluation.progress:.0%}: {evaluation.metrics}")

    An error in one of them ends the run as failed; its record is kept.
    """

    def on_start(self, run: RunStart) -> None:
        """Take in that the run has begun: its workers are there, and so is its folder."""

    def on_evaluation(self, evaluation: Evaluation, measures: Measures) -> None:
        """Take in an evaluation: each row of `record.evaluations`, in their order.

        Args:
            evaluation: `mark`, `progress`, `version`, `at` (seconds since the run began), and
                `metrics`, a mapping of names to numbers.
            measures: those of the run so far; training may have gone on since that evaluation.
        """

    def on_progress(self, measures: Measures) -> None:
        """Take in the measures of the run so far, a few times a second, and when it has ended."""

    def on_end(self, record: RunRecord) -> None:
        """Take in the record of the run, however it has ended: `record.summary["status"]`."""


METHODS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def name_of(callback: object) -> str:
    """Name a callback in messages, by its class."""
    return f"{type(callback).__module__}:{type(callback).__qualname__}"


def check_callbacks(callbacks: Sequence[object], where: str = "callbacks") -> None:
    """Refuse what would never be called, or could not be.

    Args:
        callbacks: the objects that the user gave.
        where: the name of the argument or setting, for errors.

    Raises:
        ConfigError: one is a class, has none of the methods, a method with an unknown name, or one
            that does not take the arguments.
    """
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
    """Make the callbacks that an experiment file names, anew for each run.

    Raises:
        ConfigError: one does not exist, its parameters do not fit, or it is no callback.
    """
    for index, choice in enumerate(experiment.callbacks):
        where = f"callbacks[{index}] {choice.name}"
        kind = load_reference(choice.name, where)
        with users_code(where):
            made = call(kind, where, choice.parameters, {})
        check_callbacks([made], where)
        yield made
