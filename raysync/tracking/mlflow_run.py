"""A run of MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import FileLock
from typing_extensions import override

from raysync.tracking.library import FAILED, LibraryRun

SQLITE = "sqlite:///"
LONGEST_PARAMETER = 6000  # MLflow's limit of characters
PARAMETERS_AT_ONCE = 100


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "mlflow.lock"):
        yield


class MlflowRun(LibraryRun):
    """Logs to `tracking_uri`, by default MLflow's variable, else a database in the record's folder.

    (MLflow 3 writes no folders of runs any more.) `experiment_name` is by default the name of the
    experiment or sweep; `artifact_location` counts for a new experiment only.
    """

    packages = ("mlflow", "mlflow.tracking", "mlflow.entities")

    @classmethod
    @override
    def argument_names(cls) -> tuple[str, ...]:
        return ("tracking_uri", "artifact_location", "experiment_name", "run_name", "tags")

    def __init__(self, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        super().__init__(run, arguments)
        self._entities = import_module("mlflow.entities")
        variables = import_module("mlflow.environment_variables")
        uri = arguments.get("tracking_uri") or variables.MLFLOW_TRACKING_URI.get()
        uri = uri or f"{SQLITE}{Path(run['folder']).absolute() / 'mlflow' / 'mlflow.db'}"
        folder = Path(uri.removeprefix(SQLITE)).absolute().parent if SQLITE in uri else None
        # the trials of a sweep begin together, and each would create the tables of a new database
        with nullcontext() if folder is None else _locked(folder):
            self._client = import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
            self._client.search_experiments(max_results=1)
        self._began = float(run["began"])
        logged = self._parameters_of(run["logged_as"])
        if logged is None:
            location = arguments.get(
                "artifact_location", folder and (folder / "artifacts").as_uri()
            )
            self.id = self._create(run, arguments, location)
        else:
            self.id = run["logged_as"]
            self._client.update_run(self.id, status="RUNNING")
        # a parameter cannot change: its first value stays
        self._log_parameters(
            {key: value for key, value in run["config"].items() if key not in (logged or ())}
        )

    @classmethod
    @override
    def environment(cls, run: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
        return {"MLFLOW_DISABLE_TELEMETRY": "true"}

    def _parameters_of(self, run_id: str) -> Mapping[str, str] | None:
        """Return the parameters of an earlier process's run; None: there is no such run."""
        if not run_id:
            return None
        try:
            run = self._client.get_run(run_id)
        except import_module("mlflow.exceptions").MlflowException:
            return None  # of another server
        parameters: Mapping[str, str] = run.data.params
        return parameters if run.info.lifecycle_stage == "active" else None

    def _create(
        self, run: Mapping[str, Any], arguments: Mapping[str, Any], location: str | None
    ) -> str:
        name = arguments.get("experiment_name", run["group"])
        tags = {"paradigm": run["tags"][0], "engine": run["tags"][1], "group": run["group"]}
        created = self._client.create_run(
            self._experiment_id(name, location),
            start_time=self._milliseconds(0.0),
            run_name=arguments.get("run_name", run["name"]),
            tags=tags | arguments.get("tags", {}),
        )
        return str(created.info.run_id)

    def _experiment_id(self, name: str, location: str | None) -> str:
        with suppress(import_module("mlflow.exceptions").MlflowException):
            return str(self._client.create_experiment(name, artifact_location=location))
        found = self._client.get_experiment_by_name(name)  # another run may just have created it
        if found is None:
            return str(self._client.create_experiment(name, artifact_location=location))
        return str(found.experiment_id)

    def _log_parameters(self, config: Mapping[str, Any]) -> None:
        parameters = [
            self._entities.Param(key, str(value)[:LONGEST_PARAMETER])
            for key, value in config.items()
        ]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self.id, params=parameters[first : first + PARAMETERS_AT_ONCE])

    def _milliseconds(self, seconds: float) -> int:
        return int(1000 * (self._began + seconds))

    @override
    def log(self, samples: int, seconds: float, metrics: Mapping[str, float]) -> None:
        at = self._milliseconds(seconds)
        values = {**metrics, "seconds": seconds}
        self._client.log_batch(
            self.id,
            metrics=[self._entities.Metric(name, values[name], at, samples) for name in values],
        )

    @override
    def end(self, run: Mapping[str, Any]) -> None:
        for key, value in run["summary"].items():
            if isinstance(value, str | bool):
                self._client.set_tag(self.id, f"summary.{key}", value)
            else:
                self._client.log_metric(self.id, f"summary/{key}", value, step=run["samples"])
        self._client.set_tag(self.id, "status", run["status"])
        for file in self.files(run):
            self._client.log_artifact(self.id, file, artifact_path="record")
        status = "FAILED" if run["status"] in FAILED else "FINISHED"
        self._client.set_terminated(self.id, "KILLED" if run["status"] == "stopped" else status)
