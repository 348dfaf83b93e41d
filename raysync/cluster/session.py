"""A session owns the Ray connection and the actors; runs that follow one another keep them.

torch is imported once per process, so the second run of a comparison starts at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raysync.cluster.connection import Connection
from raysync.cluster.controller import START_DEADLINE_S, Controller, RunPlan
from raysync.cluster.evaluator import Evaluator
from raysync.cluster.placement import Place, Plan, cpus, fallbacks, placed, plan, reserve
from raysync.cluster.posts import Post
from raysync.cluster.server import Server
from raysync.cluster.worker import Worker, WorkerPlan
from raysync.config import Crash, Experiment
from raysync.core.events import Left
from raysync.core.journal import Ended, Entry, Line
from raysync.core.paradigm import Paradigm
from raysync.errors import RunFailed
from raysync.record.metrics import Title
from raysync.training.data import DataSet
from raysync.training.task import Task


@dataclass(frozen=True)
class Cast:
    """The classes of a crew's actors."""

    server: type = Server
    evaluator: type = Evaluator
    controller: type = Controller
    worker: type = Worker


OWN = Cast()
"""Of runs whose workers have the whole network."""


@dataclass
class Crew:
    """The actors of an experiment in their placement group, and what they were made for."""

    asked: Plan
    """With the first label selector of each group; `plan` has the chosen ones."""
    threads: tuple[int, ...]
    plan: Plan
    group: PlacementGroup
    task_events: bool
    servers: list[Any] = field(default_factory=list)
    evaluator: Any = None
    controller: Any = None
    workers: list[Any] = field(default_factory=list)
    whole: bool = True
    """False once an actor was lost: then the next run gets new ones."""

    def hire(self, experiment: Experiment, cast: Cast) -> None:
        """Start the actors, each in its bundle."""
        cluster, plan, threads = experiment.cluster, self.plan, self.threads
        for index in plan.servers:
            self.servers.append(_actor(cast.server, self.options(index, cluster.server_cpus), threads[index]))
        self.evaluator = _actor(cast.evaluator, self.options(plan.evaluator, cluster.evaluator_cpus, cluster.evaluator_gpus),
                                threads[plan.evaluator])
        self.controller = _actor(cast.controller, self.options(plan.servers[0], 0))
        for index, group in zip(plan.workers, experiment.slots().values(), strict=True):
            self.workers.append(_actor(cast.worker, self.options(index, group.cpus, group.gpus), threads[index]))

    def options(self, index: int, cpus: float, gpus: float = 0) -> dict[str, Any]:
        """Ray's, of an actor with that share of a bundle."""
        place = PlacementGroupSchedulingStrategy(placement_group=self.group, placement_group_bundle_index=index)
        return {"scheduling_strategy": place, "enable_task_events": self.task_events, "num_cpus": cpus, "num_gpus": gpus}

    def post(self, number: int, plan: WorkerPlan, data: Any) -> Post:
        """How the n-th worker is started anew."""
        index, group = self.plan.workers[number], plan.group
        return Post(self.options(index, group.cpus, group.gpus), self.threads[index], plan, data)

    def dismiss(self) -> None:
        """Kill the actors."""
        for actor in (self.controller, *self.workers, self.evaluator, *self.servers):
            if actor is not None:
                with suppress(RayError):  # the cluster itself may be gone
                    ray.kill(actor)


def _actor(cls: type, options: dict[str, Any], *arguments: Any) -> Any:
    return ray.remote(cls).options(**options).remote(*arguments)


class Session:
    """Use it as a context manager: when it ends, actors, placement group and private cluster are gone."""

    def __init__(
        self, notify: Callable[[str], None] = lambda text: None, address: str | None = None,
        within: PlacementGroup | None = None,
    ) -> None:
        """
        Args:
            notify: is told, in a sentence, what the user should know.
            address: the cluster to join for experiments whose `cluster.address` is `auto`, as Ray's RAY_ADDRESS names it;
                None: a private one.
            within: the placement group to use, with the bundles of `placement.placed`; None: one is made, and removed.
        """
        self._notify = notify
        self._connection = Connection(notify, address)
        self._within = within
        self.places: dict[str, Place] = {}
        """Where the actors of the latest run sit: `server-0`, `evaluator`, and the worker slots."""
        self._crew: Crew | None = None
        self._data: tuple[DataSet, Any] | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, task: Task, paradigm: Paradigm, title: Title | None = None) -> Iterator[list[Line]]:
        """Train a task under a paradigm, and yield what happens, in order; the last line is an `Ended`.

        Args:
            task: what to train.
            paradigm: fresh.
            title: what metrics are published under; None: none are.

        Raises:
            ConfigError: there is no such cluster, or it cannot hold the experiment.
            RunFailed: the actors do not start, or the controller died.
        """
        self._connection.open(task.experiment.cluster, cpus(task.experiment))
        crew, plan = self._ready(task, paradigm, title if task.experiment.cluster.metrics else None)
        crew.whole = False  # until this run has ended well
        ended, lost = None, False
        slots = dict(zip(task.shards, crew.workers, strict=True))
        try:
            for reference in crew.controller.run.remote(plan, crew.servers, crew.evaluator, slots):
                lines = ray.get(reference)
                ended = lines[-1] if isinstance(lines[-1], Ended) else None
                lost = lost or any(isinstance(line, Entry) and isinstance(line.event, Left) for line in lines)
                crew.whole = ended is not None and ended.status in ("finished", "diverged") and not lost
                yield lines
        except RayError as error:
            raise RunFailed(f"the controller: {error}") from error
        assert ended is not None, "a run without an end"

    @contextmanager
    def crew_of_another_kind(self, experiment: Experiment, cast: Cast) -> Iterator[Crew]:
        """Other actors than this session's own, which make room for them, for one run.

        Raises:
            ConfigError: there is no such cluster, or it cannot hold the experiment.
        """
        self._connection.open(experiment.cluster, cpus(experiment))
        self._disband()
        made, group = self._place(experiment)
        self._crew = Crew(plan(experiment), self._threads(experiment), made, group, experiment.cluster.task_events)
        try:
            self._crew.hire(experiment, cast)
            yield self._crew
        finally:
            self._disband()

    def close(self) -> None:
        """Take down what this session started."""
        self._disband()
        self._connection.close()
        self._data = None

    # ---- actors ----

    def _ready(self, task: Task, paradigm: Paradigm, title: Title | None) -> tuple[Crew, RunPlan]:
        """Actors that have begun the run. Kept ones that do not answer, unnoticed at the end of the last, are replaced."""
        kept = self._crew
        crew = self._crew_for(task.experiment)
        try:
            return crew, self._reset(crew, task, paradigm, title)
        except (ActorDiedError, ActorUnavailableError, GetTimeoutError) as error:
            self._disband()
            if crew is not kept:
                raise RunFailed(f"the actors did not start: {error}") from error
        except RayError as error:
            raise RunFailed(f"the actors did not start: {error}") from error
        return self._ready(task, paradigm, title)

    def _crew_for(self, experiment: Experiment) -> Crew:
        asked, threads, events = plan(experiment), self._threads(experiment), experiment.cluster.task_events
        crew = self._crew
        if crew is not None and crew.whole and (crew.asked, crew.threads, crew.task_events) == (asked, threads, events):
            return crew
        self._disband()
        self._crew = Crew(asked, threads, *self._place(experiment), events)
        for who, labels in sorted(fallbacks(asked, self._crew.plan).items()):
            self._notify(f"{who} runs where {labels}: the cluster cannot hold it otherwise.".capitalize())
        self._crew.hire(experiment, OWN)
        return self._crew

    def _place(self, experiment: Experiment) -> tuple[Plan, PlacementGroup]:
        return reserve(experiment) if self._within is None else (placed(experiment), self._within)

    def _threads(self, experiment: Experiment) -> tuple[int, ...]:
        """torch threads of the actor in each bundle: its CPUs on a cluster; on a private one a fair share of the cores."""
        asked = plan(experiment)
        share = max(1, (os.cpu_count() or 1) // len(asked.bundles))
        private = self._connection.private
        threads = [share if private else max(1, int(bundle.resources.get("CPU", 1))) for bundle in asked.bundles]
        threads[asked.evaluator] = experiment.evaluation.threads or threads[asked.evaluator]
        return tuple(threads)

    def _reset(self, crew: Crew, task: Task, paradigm: Paradigm, title: Title | None) -> RunPlan:
        experiment, data = task.experiment, self.shared(task.data)
        cluster, slots = experiment.cluster, task.groups
        plans = [WorkerPlan(slot, group, task.model, task.batches(slot), experiment.batch_size, experiment.seed,
                            task.vector_bytes, cluster.server_shards) for slot, group in slots.items()]
        resets = {f"server-{shard}": server.reset.remote(task.model, experiment.update, shard, cluster.server_shards, title)
                  for shard, server in enumerate(crew.servers)}
        resets["evaluator"] = crew.evaluator.reset.remote(task.model, experiment.evaluation, data)
        resets |= {plan.slot: worker.reset.remote(plan, data) for worker, plan in zip(crew.workers, plans, strict=True)}
        deadline_s = START_DEADLINE_S + cluster.step_deadline_s  # a kept worker may still compute its last step
        self.places = dict(zip(resets, ray.get(list(resets.values()), timeout=deadline_s), strict=True))
        blind = {group.name for slot, group in slots.items() if group.gpus and "cpu" in self.places[slot].devices}
        for name in sorted(blind):
            self._notify(f"Worker group {name!r} has GPUs, but this torch sees none: it computes on the CPU.")
        comebacks = {crash.worker for crash in experiment.troubles
                     if isinstance(crash, Crash) and crash.rejoin_after_s is not None}
        posts = {plan.slot: crew.post(number, plan, data) for number, plan in enumerate(plans) if plan.slot in comebacks}
        actor_ids = {slot: self.places[slot].actor_id for slot in slots}
        return RunPlan(paradigm, task.workload_samples, experiment, actor_ids, posts, title)

    def shared(self, data: DataSet) -> Any:
        """A reference to the data set: one copy a node."""
        if self._data is None or self._data[0] is not data:
            self._data = (data, ray.put(data))
        return self._data[1]

    def _disband(self) -> None:
        if self._crew is not None:
            crew, self._crew = self._crew, None
            crew.dismiss()
            if self._within is None:
                with suppress(RayError):  # the cluster itself may be gone
                    remove_placement_group(crew.group)
