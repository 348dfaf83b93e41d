"""A decoupled run before it starts: the network cut, the stages placed on the workers, what each costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysync.config import Experiment, Link, WorkerGroup
from raysync.core.ids import stage_slot
from raysync.core.paradigm import Paradigm, Rule
from raysync.decoupled.cut import COSTS, cut
from raysync.decoupled.exchange import exchange_of
from raysync.decoupled.pipelines import Stage
from raysync.decoupled.topology import PipelinedPlan
from raysync.errors import ConfigError
from raysync.paradigms.decoupled import Decoupled
from raysync.paradigms.hybrid import Hybrid
from raysync.paradigms.registry import make_inner
from raysync.paradigms.ringmaster import Ringmaster
from raysync.paradigms.syncswitch import SyncSwitch
from raysync.training.data import Array, Batches, shards
from raysync.training.flat import FlatModel
from raysync.training.model_server import Exchange
from raysync.training.models import ModelPlan
from raysync.training.task import Task

FLOAT_BYTES = 4


@dataclass(frozen=True)
class DecoupledPlan:
    """What both engines need to know. Built by `plan_of`."""

    task: Task
    rule: Decoupled
    slots: dict[Stage, str]
    """Stage (s, k) -> worker slot s K + k - 1, in the order of the experiment file."""
    shards: dict[str, Array]
    """First slot of each group -> indices of its training samples; empty if nothing is trained."""
    shares: dict[int, float]
    """Module -> its part of the operations of a step."""
    vector_bytes: dict[int, int]
    """Module -> of its parameters and buffers."""
    output_bytes: dict[int, float]
    """Module -> of what one sample leaves behind in it, and of the gradient that comes back for that."""
    batches: int
    """Of the pool: enough for the workload, and as many for each group."""

    def name(self, stage: Stage) -> str:
        """Of the worker in journals, without the number of its life."""
        return stage_slot(self.slots[stage], stage[1])

    def group(self, stage: Stage) -> WorkerGroup:
        """What is known of the stage's device; `step_s` is that of the whole network."""
        return self.task.groups[self.slots[stage]]

    def draws(self, group: int) -> Batches:
        """The batches of a group, those of a worker in its first stage's place."""
        slot, experiment = self.slots[group, 1], self.task.experiment
        return Batches(self.shards[slot], experiment.seed, slot, experiment.data.augment)

    def topology(self) -> PipelinedPlan:
        """The plan of the topology, without torch."""
        slots = {stage: (self.name(stage), slot) for stage, slot in self.slots.items()}
        return PipelinedPlan(self.rule, self.task.workload_samples, self.batches, slots)

    def parts(self) -> list[nn.Sequential]:
        """The modules, fresh, with the run's initial weights."""
        return parts_of(self.task.model, self.rule)

    def exchange(self, part: nn.Module) -> Exchange:
        """A fresh one, for a module."""
        return exchange_of(self.rule, self.task.experiment.update, part)


def parts_of(model: ModelPlan, rule: Decoupled) -> list[nn.Sequential]:
    """A model, cut as the rule says.

    Raises:
        ConfigError: it cannot be.
    """
    return cut(model.build(), rule.modules, _samples(model), rule.balance, rule.at, model.name)


def plan_of(task: Task, rule: Decoupled) -> DecoupledPlan:
    """Cut the network and lay the stages out.

    Raises:
        ConfigError: the network cannot be cut like that, or a setting of the experiment does not go with it.
    """
    experiment = task.experiment
    check(experiment, rule)
    parts = parts_of(task.model, rule)
    models = [FlatModel(part) for part in parts]
    slots = {(index // rule.modules, index % rule.modules + 1): slot for index, slot in enumerate(experiment.slots())}
    firsts = [slots[group, 1] for group in range(rule.groups)]
    dealt = {} if experiment.timing == "only" else shards(experiment.data, task.data.train_y, firsts, experiment.seed)
    costs, outputs = _costs(parts, _samples(task.model))
    rounds = -(-task.workload_samples // (rule.groups * experiment.batch_size))
    return DecoupledPlan(
        task, rule, slots, dealt, {index: cost / sum(costs) for index, cost in enumerate(costs, start=1)},
        {index: FLOAT_BYTES * (model.size + model.buffer_size) for index, model in enumerate(models, start=1)},
        dict(enumerate(outputs, start=1)), rounds * rule.groups)


def placed_as(experiment: Experiment, rule: Rule) -> Experiment:
    """Return the experiment as its actors are placed: each stage of a cut network has a server."""
    if not isinstance(rule, Decoupled):
        return experiment
    cluster = experiment.cluster.model_copy(update={"server_shards": rule.modules})
    return experiment.model_copy(update={"cluster": cluster})


def check_task(task: Task, rule: Rule) -> None:
    """Refuse before any run what would be refused at its beginning.

    Raises:
        ConfigError: naming the setting, or why the network cannot be cut.
    """
    if isinstance(rule, Decoupled):
        plan_of(task, rule)


def check(experiment: Experiment, rule: Rule) -> None:
    """Refuse what a decoupled run would ignore, or cannot do.

    Raises:
        ConfigError: naming the setting.
    """
    if not isinstance(rule, Decoupled):
        return
    for why in _refusals(experiment, rule):
        raise ConfigError(f"paradigm: decoupled: {why}.")


def _refusals(experiment: Experiment, rule: Decoupled) -> Iterator[str]:
    update, on_ray = experiment.update, experiment.engine == "ray"
    if ignored := _ignored(make_inner(rule.sync, "decoupled: sync")):
        yield f"sync: {ignored} is ignored by decoupled runs so far, so it is refused"
    if rule.modules > 1 and update.project_radius is not None:
        yield "update.project_radius is about the whole network, which no server has"
    if rule.mixes_locally and update.combine == "sum":
        yield "update.combine: sum; a matrix mixes means"
    if update.delay_compensation is not None or update.staleness_scaling != "none":
        yield ("update.delay_compensation and staleness_scaling are not for delays that are part of "
               "the schedule; use shrink")
    if experiment.cluster.server_shards > 1:
        shards = experiment.cluster.server_shards
        yield f"cluster.server_shards: {shards}; each module has one server"
    for trouble in experiment.troubles:
        if trouble.kind == "crash":
            yield "troubles: a crash ends the pipeline, and the run; no stage comes back"
        if trouble.kind in ("latency", "drift") and on_ray:
            yield (f"troubles: {trouble.kind}: on Ray a stage does not emulate the way to its server; "
                   "engine: virtual does")
    for group in experiment.workers:
        if group.devices > 1:
            yield "devices_per_worker: a stage computes on one device"
        if group.precision != "float32":
            yield (f"workers: {group.name}: precision: {group.precision}; the modules compute in "
                   "float32 so far, so it is refused")
        if group.link != Link() and on_ray:
            yield (f"workers: {group.name}: link: on Ray a stage does not emulate the way to its "
                   "server; engine: virtual does")


def _ignored(sync: Paradigm) -> str:
    """The setting of a paradigm that needs workers with the whole network; empty if there is none."""
    match sync:
        case Hybrid(snapshot="global", pull_interval=interval) if interval > 1:
            return f"{sync.name}: snapshot: global with pull_interval: {interval}"
        case SyncSwitch(batch_sizes=sizes) if sizes:
            return f"{sync.name}: batch_sizes"
        case SyncSwitch(first=first, then=then):
            inside = [first, *(then if isinstance(then, list) else [then])]
            ignored = (_ignored(make_inner(spec, sync.name)) for spec in inside)
            return next(filter(None, ignored), "")
        case Ringmaster(inner=inner):
            return _ignored(inner)
    return ""


def _samples(model: ModelPlan) -> Tensor:
    if model.tokens:
        return torch.zeros(2, *model.input_shape, dtype=torch.int64)
    return torch.zeros(2, *model.input_shape)


@torch.no_grad()
def _costs(parts: list[nn.Sequential], samples: Tensor) -> tuple[list[float], list[float]]:
    """Operations of each module, and bytes of its output, of a sample."""
    costs, outputs, x = [], [], samples
    for part in parts:
        part.eval()
        costs.append(max(1.0, COSTS["operations"](part, x)))
        x = part(x)
        part.train()
        outputs.append(x.numel() * FLOAT_BYTES / len(x))
    return costs, outputs
