"""How a session finds the number of servers where `cluster.server_shards` is `auto`.

The run is prepared with one server. Then that server and a worker of each group are timed, in their
own processes and with their own threads, and where one server would be too busy the actors are
started again with more. A comparison measures once. A run that goes on from a checkpoint keeps the
number that it had.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raysync.cluster.actor_group import ActorGroup
from raysync.cluster.clock import within
from raysync.cluster.devices import Place
from raysync.cluster.paces import update_pace
from raysync.cluster.placement import placed
from raysync.cluster.server_count import (
    Pace,
    ServerCount,
    choose,
    most_servers,
    reason_for_one,
    settled,
)
from raysync.config import START_DEADLINE_S, Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.engine.topology import SERVER
from raysync.errors import ConfigError
from raysync.training.preparation import TrainingPlan


def with_servers(training: TrainingPlan, servers: int) -> TrainingPlan:
    """Return a training by Ray with that number of servers in place of `auto`."""
    return replace(training, experiment=settled(training.experiment, servers))


class AutoServers:
    """The number of servers of the runs of one session."""

    def __init__(self, notify: Callable[[str], None], *, is_trial: bool) -> None:
        """
        Args:
            notify: is told, in a sentence, what the user should know.
            is_trial: whether the places of all actors are reserved already.
        """
        self._notify = notify
        self._is_trial = is_trial
        self._former: tuple[Any, ServerCount] | None = None
        """What the latest number was found for, and that number."""

    def known(self, training: TrainingPlan, checkpoint: Checkpoint | None) -> ServerCount | None:
        """Return the number of servers of a run as far as it needs no measuring; None: it does.

        Args:
            training: of an experiment with `server_shards: auto`.
            checkpoint: what the run goes on from; None: it begins.
        """
        experiment = training.experiment
        if checkpoint is not None:
            count = len(checkpoint.servers.get(SERVER, ()))
            return ServerCount(count, f"the run had {count} at its checkpoint")
        if self._former is not None and self._former[0] == _key(training):
            return self._former[1]
        why = reason_for_one(experiment)
        if not why and self._is_trial:
            why = "the places of a trial are reserved before it begins"
        if not why and most_servers(training.vector_bytes) == 1:
            why = f"its {training.vector_bytes / 2**20:.2g} MiB are not worth another"
        return self._keep(training, ServerCount(1, why)) if why else None

    def spare_cpus(self, training: TrainingPlan) -> float:
        """Return the CPUs that servers may still ask for: a private cluster declares them."""
        most = min(most_servers(training.vector_bytes), os.cpu_count() or 1)
        return (most - 1) * training.experiment.cluster.server_cpus

    def measured(
        self,
        training: TrainingPlan,
        actor_group: ActorGroup,
        model: Any,
        places: Mapping[str, Place],
        cores: Mapping[str, int],
    ) -> ServerCount:
        """Measure, and return the number of servers of a run, and of those like it.

        Args:
            training: what is trained.
            actor_group: its actors, with one server, which have begun the run.
            model: a reference to the task and its model.
            places: where each actor sits.
            cores: node -> how many it has.
        """
        try:
            count = self._measure(training, actor_group, model, places, cores)
        except (RayError, TimeoutError) as error:  # the run will meet it, too, and say where
            cause = error.cause if isinstance(error, RayTaskError) else error
            reason = str(cause).partition("\n")[0]
            why = f"no step could be timed ({type(cause).__name__}: {reason})"
            count = ServerCount(1, why)
        wanted = count.servers
        while count.servers > 1 and not _fits(settled(training.experiment, count.servers)):
            count = replace(count, servers=count.servers - 1)
        if count.servers < wanted:
            count = replace(count, why=f"{count.why}; the cluster has no room for more")
        return self._keep(training, count)

    def without_room(self, training: TrainingPlan, count: ServerCount) -> ServerCount:
        """Return one server for a run, as there is no room for more at present."""
        why = f"{count.why}; there is no room for more at present"
        return self._keep(training, replace(count, servers=1, why=why))

    def _keep(self, training: TrainingPlan, count: ServerCount) -> ServerCount:
        """Keep a count for runs like this, and tell the user of it."""
        self._former = _key(training), count
        self._notify(count.sentence)
        return count

    def _measure(
        self,
        training: TrainingPlan,
        actor_group: ActorGroup,
        model: Any,
        places: Mapping[str, Place],
        cores: Mapping[str, int],
    ) -> ServerCount:
        update, vector_bytes = training.experiment.update, training.vector_bytes
        deadline_s = training.experiment.cluster.step_deadline_s + START_DEADLINE_S

        def answer(reference: Any) -> Any:
            return within(deadline_s, lambda: ray.get(reference))

        server = actor_group.servers[0]
        pace_of_server = answer(server.__ray_call__.remote(update_pace, update, vector_bytes))
        of_groups: dict[str, Pace] = {}
        paces = []
        for (slot, group), worker in zip(training.groups.items(), actor_group.workers, strict=True):
            if group.name not in of_groups:  # those of a group are alike
                of_groups[group.name] = answer(worker.pace.remote(model))
            paces.append(replace(of_groups[group.name], node=places[slot].node_id))
        return choose(pace_of_server, paces, vector_bytes, cores)


def _fits(experiment: Experiment) -> bool:
    """Say whether the cluster may hold an experiment."""
    try:
        placed(experiment)
    except ConfigError:
        return False
    return True


def _key(training: TrainingPlan) -> Any:
    """Return all that a count depends on; the paradigm and the seed are not among it."""
    experiment = training.experiment
    return (
        training.model.name,
        training.vector_bytes,
        experiment.workers,
        experiment.batch_size,
        experiment.micro_batch,
        experiment.update,
        experiment.cluster,
    )
