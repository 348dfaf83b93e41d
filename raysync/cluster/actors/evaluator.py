"""The evaluator actor; training never waits for it."""

from __future__ import annotations

from raysync.cluster.actor_errors import ProcessRestarted, answers
from raysync.cluster.actors.actor_spec import Place, Role
from raysync.cluster.actors.devices import current_place, devices_of_actor
from raysync.cluster.actors.threads import Threads, use_threads
from raysync.cluster.actors.warm_up import warm_up
from raysync.cluster.run_spec import RunSpec
from raysync.cluster.transports.payloads import Payload, forget_run, incoming
from raysync.decoupled.published_model import PublishedModel
from raysync.engine.messages import EvaluateCall, StateDictCall
from raysync.training.models.initial_model import InitialModel


class Evaluator:
    """Evaluates published weights on the test set, in the order of their publication."""

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        self._role = role
        self._model: PublishedModel | None = None

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, spec: RunSpec, model: InitialModel) -> Place:
        forget_run()
        [device] = devices_of_actor()
        published = self._model = PublishedModel(
            model,
            spec.experiment,
            spec.topology.paradigm,
            device,
            loader_workers=spec.experiment.data.loader_workers,
        )
        warm_up((model.name, device, "evaluation"), lambda: lambda number: published.warm_up())
        return current_place([device])

    @answers
    def evaluate(self, message: EvaluateCall, *weights: Payload) -> dict[str, float]:
        """Return the metrics of published weights: name -> value."""
        return self._ready_model.measure(incoming(*weights), message.is_last)

    @answers
    def state_dict(self, message: StateDictCall, *weights: Payload) -> bytes:
        """Return a model with published weights as the contents of a safetensors file."""
        return self._ready_model.encode(incoming(*weights))

    @property
    def _ready_model(self) -> PublishedModel:
        """The model of the run.

        Raises:
            ProcessRestarted: Ray has restarted the process since `reset`.
        """
        if self._model is None:
            raise ProcessRestarted
        return self._model
