"""The interface of a tracking library's run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

# The arguments of every library: whether to log the record's files as an artifact (default: yes),
# and the trained models (default: no).
COMMON_ARGUMENTS = ("log_record", "log_model")
FAILED = ("failed", "diverged", "killed")  # statuses of runs that libraries mark as failed


class LibraryRun(ABC):
    """A run of the library, which a resumed run of ours continues."""

    packages: tuple[str, ...]
    """To be imported before."""
    id: str
    """What the library calls the run."""
    notice = ""
    """A sentence for the user, such as the URL of the run."""

    def __init__(self, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """
        Args:
            run: the fields of a `Beginning`, and `logged_as`: the id of an earlier process's run.
            arguments: from the experiment file.
        """
        self._log_record = arguments.get("log_record", True)
        self._log_model = arguments.get("log_model", False)

    @classmethod
    @abstractmethod
    def argument_names(cls) -> tuple[str, ...]:
        """Return the names of the library's arguments. The library is installed."""

    @classmethod
    def environment(cls, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
        return {}  # variables to set before the library is imported

    @abstractmethod
    def log(self, samples: int, seconds: float, metrics: Mapping[str, float]) -> None: ...

    @abstractmethod
    def end(self, run: Mapping[str, Any]) -> None:
        """Log the fields of an `Ending`, and wait until all is sent."""

    def files(self, run: Mapping[str, Any]) -> list[str]:
        """List the files for the record's artifact."""
        models = run["models"] if self._log_model else []
        return [*(run["files"] if self._log_record else []), *models]


def library_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in COMMON_ARGUMENTS}
