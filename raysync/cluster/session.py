"""A session owns the Ray connection and the actors, which successive runs reuse.

torch is imported once per process, so the second run of a comparison starts at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pickle import PicklingError
from types import MappingProxyType
from typing import Any

import numpy as np
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup

from raysync.cluster.actor_errors import start_reason
from raysync.cluster.actor_group import ActorGroup, ActorGroupSpec
from raysync.cluster.actors.actor_spec import Place, actor_group_name, server_role
from raysync.cluster.clock import ANSWER_S, sleep_s, within
from raysync.cluster.connection import Connection
from raysync.cluster.controller import RunActors
from raysync.cluster.full_object_store import full_reason, is_full
from raysync.cluster.placement import Plan, cpus, fallbacks, feasible_plan, plan, reserve
from raysync.cluster.ray_private.fork_server import ForkServer
from raysync.cluster.transports.choose import choose
from raysync.cluster.transports.transport import ServerNode, Sites, TransportPlan
from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Left
from raysync.core.ids import worker_id
from raysync.core.journal import Ended, Entry, Line
from raysync.core.paradigm import AnyParadigm
from raysync.core.roster import Roster
from raysync.engine.checkpoint_state import check_restorable, files_of
from raysync.engine.kept_models import SavedModel
from raysync.errors import ConfigError, RunFailed, RunLost
from raysync.programs.building import spec_of
from raysync.programs.run_spec import RunSpec
from raysync.record.metrics_registry import RunLabels
from raysync.training.models.initial_model import InitialModel
from raysync.training.preparation import TrainingPlan

SILENCE_S = 60.0  # a longer silence means a frozen controller, which reports about every second
TEARDOWN_S = 10.0  # how long Ray may take to end the actors of a run


class Session:
    """The actors of successive runs, as a context manager.

    When it ends, actors, placement group and private cluster are gone.
    """

    resumes_exactly = False
    rosters: Mapping[int, Roster] = MappingProxyType({})  # the controller has a run's rosters

    def __init__(
        self,
        notify: Callable[[str], None] = lambda text: None,  # shows the user a sentence
        # the cluster to join where `cluster.address` is `auto`; None: a private one is started
        address: str | None = None,
        # a group with the bundles of `placement.feasible_plan`; None: one is created, and removed
        placement_group: PlacementGroup | None = None,
        fork_server: ForkServer | None = None,  # started early for a private cluster
        least_cpus: float = 0.0,  # of a private cluster, if a later run needs more than the first
    ) -> None:
        self._notify = notify
        self._least_cpus = least_cpus
        self._connection = Connection(notify, address, fork_server)
        self._placement_group = placement_group
        # `server-0`, `evaluator` or a worker's slot -> the place of that actor in the latest run
        self.places: dict[str, Place] = {}
        self.models: list[SavedModel] = []  # of the latest run, complete before its last report
        self._said: set[str] = set()  # how vectors travel: a comparison's runs say it once
        self._actor_group: ActorGroup | None = None
        self._model: tuple[InitialModel, Any] | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        training: TrainingPlan,
        paradigm: AnyParadigm,  # a fresh one
        labels: RunLabels | None = None,  # None: no metrics are published
        checkpoint: Checkpoint | None = None,  # to resume from
        history: Callable[[], Sequence[Line]] = tuple,  # not read by this engine
    ) -> Iterator[list[Line] | Checkpoint]:
        """Train under a paradigm, and yield events in order; the last line is an `Ended`.

        Raises:
            ConfigError: there is no such cluster, or it cannot hold the experiment; or the
                checkpoint is damaged.
            RunFailed: the actors do not start.
            RunLost: the controller died, or something else that the run cannot do without.
        """
        if checkpoint is not None:
            check_restorable(checkpoint, paradigm)
        spec = spec_of(training, paradigm, labels)
        self._connection.open(spec.experiment.cluster, max(self._least_cpus, cpus(spec.experiment)))
        actor_group, begun = self._begin_with_restarts(training, spec, checkpoint)
        actor_group.is_reusable = False  # until this run has ended well
        ended, lost, has_begun = None, False, False
        self.models = []
        for report in _reports(
            actor_group.controller.run.remote(
                begun.setup[0],
                begun,
                None if checkpoint is None else replace(checkpoint, servers={}),
            )
        ):
            if isinstance(report, SavedModel):
                self.models.append(report)
            elif isinstance(report, Checkpoint):
                yield report
            elif report or has_begun:  # an earlier sign of life is no event of the run
                has_begun = True
                ended = report[-1] if report and isinstance(report[-1], Ended) else None
                lost = lost or any(_is_loss(line) for line in report)
                actor_group.is_reusable = (
                    ended is not None and ended.status in spec.keeps_actors_after and not lost
                )
                yield report
        assert ended is not None, "a run without an end"

    def stop(self) -> None:
        """Let the run in progress end as `stopped`, after a last checkpoint."""
        assert self._actor_group is not None, "no run is under way"
        self._actor_group.controller.stop.remote()

    def await_reset(self, resets: Mapping[str, Any], busy_s: float = 0.0) -> None:
        """Wait for the actors' `reset`, and set `places` to the results.

        The actors may still be busy with the previous run for `busy_s`.
        """
        assert self._actor_group is not None, "a run without actors"
        try:
            places = within(
                self._actor_group.start_deadline_s + busy_s, lambda: ray.get(list(resets.values()))
            )
        except RayTaskError as error:
            if isinstance(error.cause, ConfigError):  # of a GPU, which only its actor knows
                raise error.cause from None
            raise
        self.places = dict(zip(resets, places, strict=True))

    def close(self) -> None:
        """End what this session started, even if Ray is stuck."""
        try:
            self._shutdown()
        finally:
            self._connection.close()
            self._model = None

    # ---- actors ----

    def _begin_with_restarts(
        self, training: TrainingPlan, spec: RunSpec, checkpoint: Checkpoint | None
    ) -> tuple[ActorGroup, RunActors]:
        """Return actors that have begun the run.

        Reused actors that do not answer are replaced. If a process of new ones dies before the run
        has begun, all are restarted, as often as `cluster.restarts` allows.

        Raises:
            RunFailed: they do not start.
        """
        restarts, attempts = spec.experiment.cluster.restarts, 0
        while True:
            previous = self._actor_group
            try:
                actor_group = self._actor_group_for(spec)
                return actor_group, self._begin(actor_group, training, spec, checkpoint)
            except (ActorDiedError, ActorUnavailableError, TimeoutError) as error:
                is_new = previous is None or self._actor_group is not previous
                self._shutdown()
                if is_new and (attempts >= restarts.attempts or not _was_killed(error)):
                    raise RunFailed(f"the actors did not start: {error}") from error
            except RayError as error:
                why = full_reason() if is_full(error) else start_reason(error)
                raise RunFailed(f"the actors did not start: {why}") from error
            if is_new:
                wait_s = restarts.wait_s(attempts)
                attempts += 1
                self._notify(
                    "A process died before the run had begun; all actors are restarted in"
                    f" {wait_s:g} s."
                )
                sleep_s(wait_s)

    def _actor_group_for(self, spec: RunSpec) -> ActorGroup:
        experiment = spec.experiment
        requested = plan(experiment)
        threads, server_threads = self._threads(experiment)
        wanted = ActorGroupSpec(
            is_pipelined=spec.is_pipelined,
            requested=requested,
            slots=tuple(spec.slots),
            min_threads=threads,
            spreads_threads=self._placement_group is None,
            server_threads=server_threads,
        )
        present = self._actor_group
        if present is not None and present.is_reusable and present.spec == wanted:
            return present
        self._shutdown()
        name = actor_group_name(spec.labels.experiment if spec.labels else experiment.name)
        chosen, group = (
            reserve(experiment, name)
            if self._placement_group is None
            else (feasible_plan(experiment), self._placement_group)
        )
        self._actor_group = ActorGroup(name, wanted, chosen, group)
        for owner, selector in sorted(fallbacks(requested, chosen).items()):
            self._notify(
                f"{owner[:1].upper()}{owner[1:]} runs where {selector}: the cluster has no room for"
                " its preferred labels."
            )
        self._actor_group.start(spec, self._cores(), self._notify)
        return self._actor_group

    def _cores(self) -> dict[str, int]:
        """Return node -> its cores; a private node may declare more CPUs to Ray than it has."""
        declared = {
            node["NodeID"]: int(node["Resources"].get("CPU", 1))
            for node in within(ANSWER_S, ray.nodes)
        }
        cores_here = os.cpu_count() or 1
        return {
            node: max(1, cores_here if self._connection.is_private else count)
            for node, count in declared.items()
        }

    def _threads(self, experiment: Experiment) -> tuple[tuple[int, ...], int | None]:
        """Return the torch threads of each bundle, and of a server if different.

        On a cluster these are the CPUs of the bundle, or a fair share of its node's cores if that
        is more; on a private one a fair share of the cores.
        """
        requested, cores = plan(experiment), os.cpu_count() or 1
        is_private = self._connection.is_private
        share = max(1, cores // len(requested.bundles))
        threads = tuple(
            share if is_private else max(1, int(bundle.resources.get("CPU", 1)))
            for bundle in requested.bundles
        )
        return threads, server_threads(requested, cores) if is_private else None

    def _begin(
        self,
        actor_group: ActorGroup,
        training: TrainingPlan,
        spec: RunSpec,
        checkpoint: Checkpoint | None,
    ) -> RunActors:
        """Let all actors begin the run."""
        setup = ray.put(spec), self.shared(training.model)
        states = _server_files(spec, checkpoint)
        servers = [server_role(spec.first_server + index).kind for index in states]
        resets = {
            name: server.reset.remote(*setup, *state)
            for name, server, state in zip(
                servers, actor_group.servers, states.values(), strict=True
            )
        }
        resets["evaluator"] = actor_group.evaluator.reset.remote(*setup)
        resets |= {
            slot: worker.reset.remote(*setup)
            for slot, worker in zip(spec.slots, actor_group.workers, strict=True)
        }
        # A reused worker may still compute its last step.
        self.await_reset(resets, spec.experiment.cluster.step_deadline_s)
        self._warn_of_missing_gpus(spec)
        transport = self._choose_transport(actor_group, spec, servers)
        respawns = {
            each.role.slot: replace(each, setup=setup) for each in actor_group.worker_specs
        } | {
            each.role.kind: replace(each, setup=setup, state=state)
            for each, state in zip(actor_group.server_specs, states.values(), strict=True)
        }
        workers = {slot: str(worker_id(slot, 1)) for slot in spec.slots}
        if checkpoint is not None:
            workers |= checkpoint.workers
        places = self.places
        return RunActors(
            servers=actor_group.servers,
            receivers=actor_group.receivers,
            evaluator=actor_group.evaluator,
            workers=dict(zip(workers.values(), actor_group.workers, strict=True)),
            names={places[slot].actor_id: worker for slot, worker in workers.items()}
            | {
                places[servers[index]].actor_id: server
                for server, indices in spec.servers.items()
                for index in indices
            },
            sites={worker: places[slot].node_id for slot, worker in workers.items()},
            server_sites=[places[name].node_id for name in servers],
            group=actor_group.group,
            bundles=dict(zip(spec.slots, actor_group.plan.workers, strict=True)),
            server_bundles={
                server: [actor_group.plan.servers[index] for index in indices]
                for server, indices in spec.servers.items()
            },
            setup=setup,
            respawns=ray.put(respawns),
            transport=transport,
        )

    def _warn_of_missing_gpus(self, spec: RunSpec) -> None:
        blind = {
            spec.group(slot).name
            for slot in spec.slots
            if spec.group(slot).gpus and "cpu" in self.places[slot].devices
        }
        for name in sorted(blind):
            self._notify(
                f"Worker group {name!r} has GPUs, but torch on its node sees none: it computes on"
                " the CPU."
            )

    def _choose_transport(
        self, actor_group: ActorGroup, spec: RunSpec, servers: Sequence[str]
    ) -> TransportPlan:
        """Choose the run's transport, and note it in the places of the actors.

        Raises:
            ConfigError: the cluster does not allow the transport that the experiment demands.
        """
        nodes = {name: place.node_id for name, place in self.places.items()}
        sites = Sites(
            {name: nodes[name] for name in servers},
            nodes["evaluator"],
            {slot: nodes[slot] for slot in spec.slots},
        )
        first, controller = servers[0], actor_group.controller
        named = {"evaluator": actor_group.evaluator, "controller": controller}
        actors = named | dict(zip(servers, actor_group.servers, strict=True))
        actors |= dict(zip(spec.slots, actor_group.workers, strict=True))
        home = ServerNode(
            run=lambda work, actor=first: _answer(actors[actor].__ray_call__, lambda _: work()),
            held_bytes=lambda: _answer(controller.held_bytes),
            store_bytes=lambda: _store_bytes(sites.servers[first]),
        )
        plan, notices = choose(spec, sites, home)
        for notice in filter(None, notices):
            if notice not in self._said:
                self._notify(notice)
        self._said.update(notices)
        for name, transport in plan.transports.items():
            self.places[name] = replace(self.places[name], transport=transport)
        return plan

    def shared(self, model: InitialModel) -> Any:
        """Return a reference to the task and its model; each node has one copy of its arrays.

        Raises:
            ConfigError: the task cannot be pickled.
        """
        if self._model is None or self._model[0] is not model:
            try:
                self._model = (model, ray.put(model))
            except (TypeError, PicklingError, AttributeError) as error:
                raise ConfigError(
                    f"task {model.task.name}: it cannot be sent to the actors, because it cannot"
                    f" be pickled ({error})."
                ) from error
        return self._model[1]

    def _shutdown(self) -> None:
        if self._actor_group is None:
            return
        actor_group, self._actor_group = self._actor_group, None
        try:
            within(
                TEARDOWN_S,
                lambda: actor_group.shutdown(keeps_group=self._placement_group is not None),
            )
        except TimeoutError:
            self._notify(f"Ray is stuck: it did not end the actors within {TEARDOWN_S:g} s.")


def _reports(stream: Iterator[Any]) -> Iterator[list[Line] | SavedModel | Checkpoint]:
    """Yield a controller's reports, to its end.

    Raises:
        RunLost: the controller died, or is silent, or has lost what the run cannot do without.
    """

    def next_report() -> list[Line] | SavedModel | Checkpoint | None:
        reference = next(stream, None)
        return None if reference is None else ray.get(reference)

    while True:
        try:
            report = within(SILENCE_S, next_report)
        except RayTaskError as error:
            if isinstance(error.cause, RunLost):
                raise error.cause from None
            if is_full(error):
                raise RunLost(f"the controller: {full_reason()}") from error
            raise RunFailed(f"the controller: {error}") from error
        except RayError as error:
            why = full_reason() if is_full(error) else str(error).splitlines()[0]
            raise RunLost(f"the controller: {why}") from error
        except TimeoutError as error:
            raise RunLost(
                f"the controller has not reported for {SILENCE_S:g} s: it is frozen, or its node"
                " cannot be reached; restart the nodes that Ray has given up (`ray start`)"
            ) from error
        if report is None:
            return
        yield report


def _is_loss(line: Line) -> bool:
    """Whether a worker left before its work was done.

    The next run then gets new actors, even if the worker was restarted: the controller owns the new
    actor, and the group's handle is of the dead one.
    """
    return isinstance(line, Entry) and isinstance(line.event, Left) and not line.report.done


def _was_killed(error: Exception) -> bool:
    """Whether an actor's process died by itself, and not by an error of its constructor."""
    return isinstance(error, ActorDiedError | ActorUnavailableError) and not error.actor_init_failed


def server_threads(requested: Plan, cores: int) -> int:
    """Return the torch threads of each server where all actors share the cores.

    During an update at least the worker of the gradient waits: the servers use its cores as well as
    their own.
    """
    shards = len(requested.servers)
    actors = shards + 1 + len(requested.workers)
    return max(1, cores * (shards + 1) // (shards * actors))


def _server_files(spec: RunSpec, checkpoint: Checkpoint | None) -> dict[int, tuple[Any, ...]]:
    """Return number of a server actor -> a reference to its file in the checkpoint, if any."""
    if checkpoint is None:
        return {index: () for indices in spec.servers.values() for index in indices}
    return {
        index: (ray.put(np.frombuffer(data, np.uint8)),)
        for server, indices in spec.servers.items()
        for index, data in zip(indices, files_of(checkpoint, server, len(indices)), strict=True)
    }


def _answer(method: Any, *arguments: Any) -> Any:
    return within(ANSWER_S, lambda: ray.get(method.remote(*arguments)))


def _store_bytes(node_id: str) -> float:
    [node] = [each for each in within(ANSWER_S, ray.nodes) if each["NodeID"] == node_id]
    return float(node["Resources"].get("object_store_memory", inf))
