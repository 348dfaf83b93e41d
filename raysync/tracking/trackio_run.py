"""A run of Trackio."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from raysync.tracking.library import LibraryRun, theirs

FOLDER = "dir"
"""The argument of ours that names the folder of Trackio's databases."""


class TrackioRun(LibraryRun):
    """Arguments are those of `trackio.init`, and `dir`, the folder of its databases; default:
    `trackio` in the folder of the record.
    """

    def __init__(self, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        super().__init__(run, arguments)
        self._trackio = import_module("trackio")
        defaults = {
            "project": "raysync",
            "name": run["name"],
            "group": run["group"],
            "embed": False,
            "auto_log_cpu": False,
            "auto_log_gpu": False,
        }
        config = {**run["config"], "tags": list(run["tags"])}
        self._run = self._trackio.init(**(defaults | theirs(arguments, FOLDER)), config=config)

    @classmethod
    def environment(cls, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
        """See `LibraryRun.environment`."""
        folder = arguments.get(FOLDER, str(Path(run["folder"]) / "trackio"))
        return {"TRACKIO_DIR": str(Path(folder).absolute())}

    def log(self, samples: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """See `LibraryRun.log`."""
        self._run.log({**metrics, "seconds": seconds}, step=samples)

    def end(self, run: Mapping[str, Any]) -> None:
        """See `LibraryRun.end`: Trackio knows no summary and no status, so they are a last row."""
        summary = {f"summary/{key}": value for key, value in run["summary"].items()}
        self._run.log({**summary, "summary/status": run["status"]}, step=run["samples"])
        if files := self.files(run):
            name = re.sub(r"[^\w.-]+", "-", f"record-{self._run.name}")
            artifact = self._trackio.Artifact(name, type="raysync-record")
            for file in files:
                artifact.add_file(file)
            self._run.log_artifact(artifact)
        self._run.finish()
