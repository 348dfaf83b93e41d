"""The world of an answer: the user's experiment, and what of it is simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from raysync import config
from raysync.config import Experiment
from raysync.engine.demands import check_metrics
from raysync.errors import ConfigError
from raysync.predict.candidates import Candidate
from raysync.predict.exchange import Exchange
from raysync.predict.remedies import SHARDS
from raysync.predict.step_times.rank_step_times import RankStepTimes
from raysync.training.preparation import TrainingPlan, prepare

HELD_OUT = 10
"""One training sample in so many is held out where there is no validation set."""
SIMULATED: dict[str, Any] = {
    "engine": "virtual",
    "keep": "none",
    "stop": None,
    "checkpoint": None,
    "track": [],
    "callbacks": [],
    "sweep": None,
    "switch_search": None,
    "published": None,
}
"""The settings of every simulated run."""


@dataclass(frozen=True)
class World:
    """An experiment, and its simulated training."""

    experiment: Experiment
    plan: TrainingPlan
    """The training as it is simulated: with the step times that are known of its workers, and
    with a validation set."""
    remarks: tuple[str, ...]
    exchange: Exchange | None = None
    """How gradients travel, where that was said beside the experiment."""

    @property
    def exchanges(self) -> tuple[Sequence[int], Sequence[str]]:
        """The numbers of servers, and the all-reduces, that are tried beside the experiment's.

        On Ray there is no all-reduce, so none can be advised there.
        """
        exchange, is_virtual = self.exchange, self.experiment.engine == "virtual"
        if exchange is None:
            has_ring = is_virtual and self.plan.experiment.describes_all_reduce
            return SHARDS, ("ring",) if has_ring else ()
        return exchange.servers, exchange.collectives if is_virtual else ()

    def advised(self, candidate: Candidate) -> Experiment:
        """Return the user's experiment with what is advised; it trains on all of its data.

        Raises:
            ConfigError: the file's own settings do not go with it.
        """
        planned = self.plan.experiment  # with the settings that the task brings
        trained = {"update": planned.update, "local": planned.local}
        changed = candidate.applied_to(self.experiment.model_copy(update=trained))
        settings = changed.model_dump(mode="json", exclude={"profile", "sweep", "switch_search"})
        return config.validate(settings, source="advised.yaml")


def world_of(
    experiment: Experiment,
    *,
    steps: RankStepTimes | None = None,
    profile: Mapping[str, Any] | None = None,
    exchange: Exchange | None = None,
) -> World:
    """Prepare what is simulated.

    Args:
        experiment: the user's experiment.
        steps: the workers' measured step times, in place of those that it gives.
        profile: the measured workers and network, in place of those that it gives.
        exchange: the links and servers, in place of those that it gives.

    Raises:
        ConfigError: there is no target or no validation set, or the step times are of other
            workers.
    """
    if experiment.trains and experiment.target is None:
        raise ConfigError(
            "target: it is not set, and advise compares the time to the target. Set one, such as"
            " --set 'target={metric: accuracy, at_least: 0.9}', or --set timing=only, to compare"
            " step times alone."
        )
    remarks: list[str] = []
    settings = experiment.model_dump(mode="json", exclude={"profile"}) | SIMULATED
    # the task brings the settings that the file does not give
    for name in ("update", "local") if experiment.local else ("update",):
        settings[name] = getattr(experiment, name).model_dump(mode="json", exclude_unset=True)
    if profile is not None:
        settings |= profile
    if steps is not None and steps.steps_per_exchange > 1:
        raise ConfigError(
            f"--steps: gradients of {steps.steps_per_exchange} steps accumulate in {steps.source},"
            " which only raysync whatif simulates."
        )
    if steps is not None:
        settings["workers"] = _traced(experiment, steps)
        remarks += [f"Step times: {steps.source}.", *steps.remarks]
    if exchange is not None:
        size = settings["network"]["vector_bytes"]
        links = exchange.network({slot: slot for slot in experiment.slots()})
        settings["network"] |= {"link": {}, "nodes": []} | links | {"vector_bytes": size}
        settings["cluster"]["server_shards"] = exchange.first_servers
    plan = prepare(config.validate(settings), for_balanced=True)
    check_metrics(plan.experiment, plan.metrics, plan.primary)
    if plan.estimated_s:
        remarks.append(
            f"Step times of {', '.join(plan.estimated_s)} are estimated from the operations of a"
            " step, because the experiment does not set them. To measure them, use raysync"
            " calibrate."
        )
    if experiment.trains and plan.model.validation_set is None:
        plan, held_out = _with_validation(settings, plan)
        remarks.append(
            f"{held_out:,} training samples were held out: the advice was chosen on them, not on"
            " the test set."
        )
    return World(experiment, plan, tuple(remarks), exchange)


def _with_validation(settings: Mapping[str, Any], plan: TrainingPlan) -> tuple[TrainingPlan, int]:
    """Hold out a part of the training set; the work stays the same, in samples."""
    experiment = plan.experiment
    if experiment.names_a_task:
        raise ConfigError(
            f"task {plan.task.name}: it has no validation_set, and advise does not choose on test"
            " data; give the task one, or --set timing=only."
        )
    count = len(plan.model.train_set)  # type: ignore[arg-type]
    held_out = max(1, count // HELD_OUT)
    data = {"train_samples": None, **settings["data"], "validation_samples": held_out}
    work = {"samples": plan.workload_samples}
    changed = config.validate({**settings, "data": data, "workload": work})
    return prepare(changed, for_balanced=True), held_out


def _traced(experiment: Experiment, steps: RankStepTimes) -> list[dict[str, Any]]:
    """Return the worker groups with the step times of ranks, by name or else in their order."""
    slots = list(experiment.slots())
    if len(steps.steps) != len(slots):
        raise ConfigError(
            f"--steps: {steps.source} has {len(steps.steps)} ranks, and the experiment"
            f" {len(slots)} workers."
        )
    by_name = set(slots) == set(steps.steps)
    seconds = steps.steps if by_name else dict(zip(slots, steps.steps.values(), strict=True))
    groups = []
    for group in experiment.workers:
        members = [slot for slot, each in experiment.slots().items() if each.name == group.name]
        described = group.model_dump(mode="json", exclude_defaults=True)
        for setting in ("step_s", "flops_per_s", "jitter", "speed"):
            described.pop(setting, None)
        if group.per_sample_s is not None:
            # the form stays, so that other batches can be predicted; its scale is the measured one
            size = group.batch_size or experiment.batch_size
            predicted_s = max(group.floor_s, group.fixed_s + group.per_sample_s * size)
            measured_s = fmean(fmean(seconds[slot]) for slot in members)
            drawn = [value for slot in members for value in seconds[slot]]
            described |= {
                "speed": predicted_s / measured_s,
                "jitter": {"distribution": "empirical", "samples": drawn},
            }
        else:
            described["trace"] = [list(seconds[slot]) for slot in members]
        groups.append(described)
    return groups


def uncalibrated_groups(experiment: Experiment) -> Sequence[str]:
    """Return the groups of an experiment for Ray that do not say how long their steps take."""
    if experiment.engine == "virtual":
        return ()
    return [group.name for group in experiment.workers if not group.emulates_steps]
