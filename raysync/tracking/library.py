"""What the run of a tracking library has in common, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

OURS = ("log_record", "log_model")
"""The arguments that every library has beside its own: whether the files of the record are logged
as an artifact (default: yes), and the trained models with them (default: no)."""
FAILED = ("failed", "diverged", "killed")


class LibraryRun(ABC):
    """One run of a tracking library, which is one run of ours."""

    notice = ""
    """A sentence that the user should read, such as the address of the run."""

    def __init__(self, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """
        Args:
            run: the fields of a `Beginning`.
            arguments: those of the experiment file.
        """
        self._log_record = arguments.get("log_record", True)
        self._log_model = arguments.get("log_model", False)

    @classmethod
    @abstractmethod
    def arguments(cls) -> tuple[str, ...]:
        """Return the names of its own arguments; the library is installed."""

    @classmethod
    def environment(cls, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the environment variables that the library needs before it is imported."""
        return {}

    @abstractmethod
    def log(self, samples: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """Log the fields of a `Row`."""

    @abstractmethod
    def end(self, run: Mapping[str, Any]) -> None:
        """Log the fields of an `Ending`, and wait until all is passed on."""

    def files(self, run: Mapping[str, Any]) -> list[str]:
        """Return the paths of the files that go into the artifact of the record."""
        models = run["models"] if self._log_model else []
        return [*(run["files"] if self._log_record else []), *models]


def theirs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are passed on to the library: all but ours."""
    return {name: each for name, each in arguments.items() if name not in OURS}
