"""The actors of an experiment: started in turns, kept between runs, killed together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raysync.cluster.actors.actor_spec import ActorSpec, Role, server_role
from raysync.cluster.actors.evaluator_actor import Evaluator
from raysync.cluster.actors.receiver import Receiver
from raysync.cluster.actors.server_actor import Server
from raysync.cluster.actors.stage_actor import Stage
from raysync.cluster.actors.threads import Threads, fair_threads, with_shared_cores
from raysync.cluster.actors.worker_actor import Worker
from raysync.cluster.clock import ANSWER_S, now_s, within
from raysync.cluster.controller import BESIDE, Controller
from raysync.cluster.placement import Plan
from raysync.cluster.ray_private.fork_server import BLOCKING
from raysync.config import START_DEADLINE_S
from raysync.programs.run_spec import RunSpec

NOTIFY_EVERY_S = 5.0  # how often the user is notified how many workers are ready
# The controller's environment. Ray frees in one thread what it allocates in another: with glibc's
# many arenas the process would grow with each push.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
# the environment of a server, which shares its cores with workers
BLOCKING_THREADS = {"env_vars": BLOCKING}


@dataclass(frozen=True)
class ActorGroupSpec:
    """The specification of an actor group: the next run with an equal one reuses the actors."""

    is_pipelined: bool  # whether its workers are stages
    # the plan with the first label selector of each group; `ActorGroup.plan` has the final ones
    requested: Plan
    slots: tuple[str, ...]  # the workers' slots, as the journal calls them
    min_threads: tuple[int, ...]  # least torch threads of the actors in each bundle
    # whether actors may use more of their nodes' cores: not in a trial, which runs beside others
    spreads_threads: bool
    server_threads: int | None  # torch threads of a server; None: like the others of its bundle


@dataclass
class ActorGroup:
    """The actors of an experiment in their placement group."""

    # `raysync:NAME-ID`, the prefix of its actors' names, and the name of the placement group
    name: str
    spec: ActorGroupSpec
    plan: Plan
    group: PlacementGroup
    servers: list[Any] = field(default_factory=list)
    # one beside each server; None if the cluster is one node
    receivers: list[Any] = field(default_factory=list)
    evaluator: Any = None
    controller: Any = None
    workers: list[Any] = field(default_factory=list)
    # without the state and the setup of a run
    server_specs: list[ActorSpec] = field(default_factory=list)
    worker_specs: list[ActorSpec] = field(default_factory=list)
    # how long its actors may take to start, or to begin a run: those of a node share its cores
    start_deadline_s: float = START_DEADLINE_S
    nodes: list[str] = field(default_factory=list)  # Ray's node id of each bundle
    threads: tuple[Threads, ...] = ()  # torch threads of the actors in each bundle
    server_threads: tuple[Threads, ...] = ()  # of each server
    is_reusable: bool = True  # False during a run, and once an actor was lost

    def start(self, spec: RunSpec, cores: Mapping[str, int], notify: Callable[[str], None]) -> None:
        """Start the actors, each in its bundle.

        Raises:
            RayError: one of them does not start.
            TimeoutError: one of them takes too long to start.
        """
        plan = self.plan
        table = within(ANSWER_S, lambda: placement_group_table(self.group))["bundles_to_node_id"]
        nodes = self.nodes = [table[index] for index in range(len(plan.bundles))]
        self._set_threads(cores)
        bundles = [*plan.servers, plan.evaluator, plan.servers[0], *plan.workers]
        starting = Starting(cores, [nodes[index] for index in bundles], len(plan.workers), notify)
        self.start_deadline_s = starting.deadline_s
        self._start_servers(starting, spec, is_one_node=len(cores) == 1)
        role, threads = Role("evaluator"), self.threads[plan.evaluator]
        options = self.options(role, plan.evaluator, plan.evaluator_cpus, plan.evaluator_gpus)
        options["max_restarts"] = -1  # the controller decides how often it may restart
        evaluator = ActorSpec(Evaluator, options, threads, actor_group=self.name, role=role)
        self.evaluator = starting.start(nodes[plan.evaluator], evaluator.start)
        options = self.options(Role("controller"), plan.servers[0], 0)
        controller = ray.remote(concurrency_groups={BESIDE: 1})(Controller).options(
            **options, runtime_env={"env_vars": ONE_ARENA}
        )
        self.controller = starting.start(
            nodes[plan.servers[0]], lambda: controller.remote(Role("controller"))
        )
        self._start_workers(starting, spec)
        starting.finish()

    def _set_threads(self, cores: Mapping[str, int]) -> None:
        spec, servers = self.spec, self.plan.servers
        self.threads = (
            fair_threads(spec.min_threads, self.nodes, cores)
            if spec.spreads_threads
            else tuple(map(Threads, spec.min_threads))
        )
        self.server_threads = tuple(
            self.threads[index] if spec.server_threads is None else Threads(spec.server_threads)
            for index in servers
        )
        if spec.spreads_threads:
            nodes = [self.nodes[index] for index in servers]
            self.server_threads = with_shared_cores(self.server_threads, nodes, cores)

    def _start_servers(self, starting: Starting, spec: RunSpec, *, is_one_node: bool) -> None:
        """Start the servers, and a receiver beside each unless all actors are on one node."""
        cpus = spec.experiment.cluster.server_cpus
        bundles = zip(self.plan.servers, self.server_threads, strict=True)
        for number, (index, threads) in enumerate(bundles, spec.first_server):
            role = server_role(number)
            options = self.options(role, index, cpus, self.plan.server_gpus)
            options["runtime_env"] = BLOCKING_THREADS
            server = ActorSpec(Server, options, threads, actor_group=self.name, role=role)
            self.server_specs.append(server)
            self.servers.append(starting.start(self.nodes[index], server.start))
            receiver_role = Role(f"receiver-{number}")
            self.receivers.append(
                None
                if is_one_node
                else ray.remote(Receiver)
                .options(**self.options(receiver_role, index, 0))
                .remote(receiver_role)
            )

    def _start_workers(self, starting: Starting, spec: RunSpec) -> None:
        groups = spec.experiment.slots().values()
        slots = zip(self.spec.slots, self.plan.workers, groups, strict=True)
        for number, (slot, index, group) in enumerate(slots):
            role = Role(f"worker-{number}", slot)
            options = self.options(role, index, group.cpus, self.plan.gpus(number, group))
            cls = Stage if self.spec.is_pipelined else Worker
            threads = self.threads[index]
            worker = ActorSpec(cls, options, threads, actor_group=self.name, role=role)
            self.worker_specs.append(worker)
            self.workers.append(starting.start(self.nodes[index], worker.start, is_worker=True))

    def options(self, role: Role, index: int, cpus: float, gpus: float = 0) -> dict[str, Any]:
        """Return Ray's options for an actor with that share of a bundle."""
        place = PlacementGroupSchedulingStrategy(
            placement_group=self.group, placement_group_bundle_index=index
        )
        return {
            "name": role.name(self.name),
            "scheduling_strategy": place,
            "enable_task_events": False,
            "num_cpus": cpus,
            "num_gpus": gpus,
        }

    def shutdown(self, *, keeps_group: bool) -> None:
        actors = (self.controller, *self.workers, self.evaluator, *self.receivers, *self.servers)
        for actor in actors:
            if actor is not None:
                with suppress(RayError):  # the cluster itself may be gone
                    ray.kill(actor)
        if not keeps_group:
            with suppress(RayError):
                remove_placement_group(self.group)


class Starting:
    """Starts actors in order, each as soon as its node has a core for it.

    An actor's process imports torch, which takes a core for seconds. Many at once on few cores
    would all be slow, and Ray declares those dead that do not register within a minute.
    """

    def __init__(
        self,
        cores: Mapping[str, int],  # node -> how many it has
        nodes: list[str],  # the node of each actor to start
        workers: int,  # how many of the actors are workers
        notify: Callable[[str], None],  # called now and then with the number of ready workers
    ) -> None:
        self._cores = cores
        self._workers, self._notify = workers, notify
        # ready reference of an actor -> its node, and whether it is a worker
        self._under_way: dict[Any, tuple[str, bool]] = {}
        self._ready = 0
        self._notified_s = now_s()
        # START_DEADLINE_S is for one actor; those of a node take turns
        turns = max(ceil(count / cores[node]) for node, count in Counter(nodes).items())
        self.deadline_s = START_DEADLINE_S * turns

    def start(self, node: str, make: Callable[[], Any], *, is_worker: bool = False) -> Any:
        """Start an actor with `make` once its node has a free core.

        Raises:
            RayError: an earlier actor did not start.
            TimeoutError: no earlier actor gets ready, or Ray is stuck.
        """
        while sum(other == node for other, _ in self._under_way.values()) >= self._cores[node]:
            self._await_one()
        actor = within(START_DEADLINE_S, make)
        self._under_way[actor.__ray_ready__.remote()] = node, is_worker
        return actor

    def finish(self) -> None:
        """Wait until all are ready; raises like `start`."""
        while self._under_way:
            self._await_one()

    def _await_one(self) -> None:
        under_way = list(self._under_way)
        [ready], _ = within(START_DEADLINE_S, lambda: ray.wait(under_way, num_returns=1))
        _, is_worker = self._under_way.pop(ready)
        within(START_DEADLINE_S, lambda: ray.get(ready))
        self._ready += is_worker
        if now_s() >= self._notified_s + NOTIFY_EVERY_S:
            self._notified_s = now_s()
            self._notify(f"{self._ready} of {self._workers} workers are ready.")
