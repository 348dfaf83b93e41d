"""The demands of an experiment on a topology and on a task, and their refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from raysync.config import Experiment, Link, Network, ParadigmChoice
from raysync.core.capability import Capability, Demand
from raysync.core.metrics import MODES, PrimaryMetric, known
from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError, unknown_name

NO_COLLECTIVE = (
    "there is no all-reduce on Ray yet: gradients travel to the server as object references;"
    " engine: virtual simulates its time"
)
NOT_EXACT = (
    "compiled code depends on the batch sizes so far, so a resumed run would not repeat the"
    " original bit by bit; on Ray it need not"
)
NORMALISED = (
    "its weights are factors, but update.combine: mean normalises them; set update: {combine: sum,"
    " lr_scaling: none}"
)
ADDS_IN_FLOAT32 = (
    "an all-reduce adds in the format that it sends, but raysync adds gradients in float32"
)
OVER_OWN_LINKS = "the time of an all-reduce is simulated for the workers' own links only"
NO_LOCAL_OPTIMIZER = (
    "it needs the block `local`, the optimizer of local steps, such as local: {lr: 0.1}"
)
CHANGED_BY_STEPS = (
    "the paradigm releases workers without new weights, but local steps have changed the old ones"
)


def refuse(
    name: str,
    refusals: Mapping[Capability, str],
    experiment: Experiment,
    paradigm: Paradigm,
    within: str = "",
) -> None:
    """Refuse demands that a topology cannot meet.

    Args:
        name: the experiment's paradigm.
        refusals: the topology's, with reasons.
        within: the parameter that names `paradigm`, if it is a nested one.

    Raises:
        ConfigError: it names the paradigm and the first refused setting.
    """
    _refuse_parts(name, experiment, paradigm)
    inner = ((capability, f"{within}{setting}") for capability, setting in paradigm.demands())
    collective = paradigm.collective
    whole = ((Capability.ALL_REDUCE, f"{within}{collective}"),) if collective else ()
    for capability, setting in (*inner, *whole, *demands_of(experiment)):
        if capability in refusals:
            raise ConfigError(f"paradigm: {name}: {setting}: {refusals[capability]}.")


def demands_of(experiment: Experiment) -> Iterator[Demand]:
    """Yield the demands that not every topology can meet."""
    update, on_ray = experiment.update, experiment.engine == "ray"
    if update.project_radius is not None:
        yield Capability.WHOLE_MODEL, "update.project_radius"
    if update.is_muon:
        yield Capability.WHOLE_MODEL, "update.optimizer: muon"
    if update.delay_compensation is not None:
        yield Capability.CORRECT_STALENESS, "update.delay_compensation"
    if (scaling := update.staleness_scaling.name) != "none":
        yield Capability.CORRECT_STALENESS, f"update.staleness_scaling: {scaling}"
    if (servers := experiment.cluster.server_shards) > 1:
        yield Capability.SHARD_SERVERS, f"cluster.server_shards: {servers}"
    if (local := experiment.local) is not None:
        yield Capability.LOCAL_STEPS, f"local: steps: {local.steps}"
    if experiment.micro_batch is not None:
        yield Capability.MICRO_BATCHES, f"micro_batch: {experiment.micro_batch}"
    if experiment.cluster.min_workers > 1:
        yield Capability.WAIT_FOR_WORKERS, f"cluster.min_workers: {experiment.cluster.min_workers}"
    if not (wire := experiment.cluster.wire).is_plain:
        yield Capability.REDUCED_WIRE, f"cluster.wire: {wire.name}"
    if on_ray and experiment.cluster.transport == "shared-memory":
        yield Capability.SHARE_MEMORY, "cluster.transport: shared-memory"
    if on_ray and experiment.cluster.server_gpus:
        yield Capability.SHARE_MEMORY, f"cluster.server_gpus: {experiment.cluster.server_gpus:g}"
    if not on_ray:
        yield from _network_demands(experiment.network)
    for fault in experiment.faults:
        for need in fault.needs:
            yield need, f"faults: {fault.kind}"
        if fault.adds_latency and on_ray:
            yield Capability.EMULATE_LINKS, f"faults: {fault.kind}"
    for group in experiment.workers:
        if group.devices > 1:
            yield (
                Capability.SEVERAL_DEVICES,
                f"workers: {group.name}: devices_per_worker: {group.devices}",
            )
        if group.batch_size not in (None, experiment.batch_size):
            yield (Capability.BATCH_SIZE, f"workers: {group.name}: batch_size: {group.batch_size}")
        if group.compile and experiment.trains:
            yield Capability.COMPILE, f"workers: {group.name}: compile: true"
        if group.link != Link() and on_ray:
            yield Capability.EMULATE_LINKS, f"workers: {group.name}: link"


def _network_demands(network: Network) -> Iterator[Demand]:
    """Yield the described network's demands; on Ray the real one replaces it."""
    if (size := network.vector_bytes) is not None:
        yield Capability.SEND_SIZES, f"network.vector_bytes: {size:g}"
    for name in ("nodes", "regions"):
        if getattr(network, name):
            yield Capability.SHARE_LINKS, f"network.{name}"
    if network.phases:
        yield Capability.NETWORK_PHASES, "network.phases"


def refusals_of_update(experiment: Experiment) -> dict[Capability, str]:
    """Return what the settings of updates refuse, and why."""
    if experiment.update.combine == "mean":
        return {Capability.SUM_GRADIENTS: NORMALISED}
    return {}


def _refuse_parts(name: str, experiment: Experiment, paradigm: Paradigm) -> None:
    """Refuse a collective whose updates are known to take a part of the workers."""
    workers = experiment.worker_count
    counts = [paradigm.pushes_per_update(workers, phase) for phase in paradigm.phases()]
    for count in counts if paradigm.collective else []:
        if count is not None and count != workers:
            raise ConfigError(
                f"paradigm: {name}: {paradigm.collective}: an update takes {count} pushes of"
                f" {workers} workers, but in a collective all take part."
            )


def refuse_of_update(experiment: Experiment, choice: ParadigmChoice) -> None:
    """Refuse a paradigm whose updates these settings cannot make; for searches among several."""
    paradigm = experiment.make(choice)
    if isinstance(paradigm, Paradigm):
        refuse(paradigm.name, refusals_of_update(experiment), experiment, paradigm)


def refusals_of_data_parallel(
    experiment: Experiment, paradigm: Paradigm
) -> Mapping[Capability, str]:
    """Return what a data-parallel run refuses on the experiment's engine, and why."""
    on_ray = experiment.engine == "ray"
    refusals = refusals_of_update(experiment)
    if not on_ray:
        refusals[Capability.COMPILE] = NOT_EXACT
    if experiment.local is not None:
        refusals[Capability.SAME_WEIGHTS] = CHANGED_BY_STEPS
    elif experiment.trains:
        refusals[Capability.LOCAL_STEPS] = NO_LOCAL_OPTIMIZER
    if not paradigm.collective:
        return refusals
    if on_ray:
        return refusals | {Capability.ALL_REDUCE: NO_COLLECTIVE}
    return refusals | {
        Capability.REDUCED_WIRE: ADDS_IN_FLOAT32,
        Capability.SHARE_LINKS: OVER_OWN_LINKS,
    }


def check_metrics(
    experiment: Experiment, metrics: Sequence[str] | None, primary: PrimaryMetric
) -> None:
    """Refuse metrics of `target` and `stop` that are unknown, or whose direction is not clear.

    Args:
        metrics: the task's; None: unknown before the first evaluation.

    Raises:
        ConfigError: the message has the nearest name.
    """
    for where, name in experiment.named_metrics.items():
        if metrics is not None and name not in known(metrics):
            raise unknown_name("metric", name, known(metrics), where=where)
    target, stop = experiment.target, experiment.stop
    if target is not None and target.metric == primary.name and target.rises != primary.rises:
        better, bound = ("larger", "at_least") if primary.rises else ("smaller", "at_most")
        raise ConfigError(
            f"target: a {better} {primary.name} is better: give {bound}; got {target.words}."
        )
    if stop is not None and stop_metric(experiment, primary) is None:
        raise ConfigError(
            f"stop.mode: say which direction of {stop.metric!r} is better: max or min."
        )
    for index, goal in enumerate(() if stop is None else stop.when):
        if goal.direction(primary) is None:
            raise ConfigError(
                f"stop.when[{index}]: say in which direction {goal.metric!r} ends the run: write"
                f" {{metric: {goal.metric}, value: {goal.value:g}, mode: max}}, or mode: min."
            )


def stop_metric(experiment: Experiment, primary: PrimaryMetric) -> PrimaryMetric | None:
    """Return the metric of `stop.patience`; None if its better direction is unknown."""
    stop, target = experiment.stop, experiment.target
    name = primary.name if stop is None or stop.metric is None else stop.metric
    if stop is not None and stop.mode is not None:
        return PrimaryMetric(name, stop.mode)
    if name == primary.name:
        return primary
    if target is not None and name == target.metric:
        return PrimaryMetric(name, "max" if target.rises else "min")
    return PrimaryMetric(name, MODES[name]) if name in MODES else None
