"""A run of Weights & Biases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from typing_extensions import override

from raysync.tracking.library import COMMON_ARGUMENTS, FAILED, LibraryRun


class WandbRun(LibraryRun):
    """Passes arguments to `wandb.init`.

    The step of metrics is `samples`: wandb's own step must never decrease, and evaluations may be
    ready late.
    """

    packages = ("wandb",)

    def __init__(self, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        super().__init__(run, arguments)
        self._wandb = import_module("wandb")
        given = {key: arguments[key] for key in arguments if key not in COMMON_ARGUMENTS}
        settings = {"console": "off", "silent": True} | given.pop("settings", {})
        defaults = {
            "project": "raysync",
            "group": run["group"],
            "name": run["name"],
            "tags": run["tags"],
            "dir": run["folder"],
            "id": sha256(run["name"].encode()).hexdigest()[:16],
            "resume": "allow",
        }
        Path(given.get("dir", run["folder"])).mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            **(defaults | given), config=dict(run["config"]), settings=settings
        )
        for name in ("seconds", "*"):
            self._run.define_metric(name, step_metric="samples")
        self.id = self._run.path
        self.notice = f"wandb: {self._run.url}" if self._run.url else ""

    @classmethod
    @override
    def argument_names(cls) -> tuple[str, ...]:
        # `config` is no argument: it is the run's configuration
        parameters = signature(import_module("wandb").init).parameters
        return tuple(name for name in parameters if name != "config")

    @classmethod
    @override
    def environment(cls, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
        # by default, wandb writes logs and artifacts below $HOME
        folder = Path(arguments.get("dir", run["folder"])).absolute() / "wandb"
        return {"WANDB_CACHE_DIR": str(folder / "cache"), "WANDB_DATA_DIR": str(folder / "data")}

    @override
    def log(self, samples: int, seconds: float, metrics: Mapping[str, float]) -> None:
        self._run.log({"samples": samples, "seconds": seconds, **metrics})

    @override
    def end(self, run: Mapping[str, Any]) -> None:
        self._run.summary.update({**run["summary"], "status": run["status"]})
        if files := self.files(run):
            name = re.sub(r"[^\w.-]+", "-", f"record-{self._run.name}")
            artifact = self._wandb.Artifact(name, type="raysync-record")
            for file in files:
                # the files of a record that has ended do not change: no copy is needed
                artifact.add_file(file, policy="immutable")
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=int(run["status"] in FAILED))
