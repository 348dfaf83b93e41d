"""From an experiment to a sweep of the few candidates that are worth training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import prod
from statistics import fmean
from typing import Any

from raysync import config
from raysync.config import Experiment, Local, ParadigmChoice
from raysync.engine.demands import check_metrics, refuse_of_update
from raysync.errors import ConfigError
from raysync.predict.candidates import (
    SYNCHRONOUS,
    Candidate,
    candidates_of,
    setting_of,
    standard_paradigms,
)
from raysync.predict.compared_candidates import (
    ComparedCandidates,
    Prediction,
    Show,
    compare,
    with_wire,
)
from raysync.predict.exchange import Exchange, collective_of
from raysync.predict.setting import Setting
from raysync.predict.step_times.rank_step_times import RankStepTimes
from raysync.predict.variations import SHARDS, server_choices
from raysync.results.ranking import ALIKE
from raysync.training.preparation import TrainingPlan, prepare

SWEEP = "advised-sweep.yaml"
MOST = 5  # the candidates that the sweep trains, at most
RATES = (0.5, 1.0, 2.0)  # the learning rates that it tries, as multiples of the experiment's
HELD_OUT = 10  # one training sample in so many is held out where there is no validation set
# settings that no simulated run has
OF_RUNS = {"stop", "checkpoint", "track", "callbacks", "sweep", "switch_search", "published"}
# the settings that `--steps`, a profile or `--link` may replace
MEASURED = ("workers", "network", "cluster")


@dataclass(frozen=True)
class PlannedTraining:
    """An experiment as it is simulated: with the step times that are known of its workers."""

    plan: TrainingPlan

    @property
    def whole_samples(self) -> int:
        return self.plan.workload_samples

    @property
    def names(self) -> Mapping[str, str]:
        return {slot: slot for slot in self.plan.experiment.slots()}

    def setting(self, candidate: Candidate) -> Setting:
        return setting_of(self.plan, candidate).paced()

    def can_run(self, candidate: Candidate) -> bool:
        try:
            self.setting(candidate)
        except ConfigError:
            return False
        return True


@dataclass(frozen=True)
class Advice:
    experiment: Experiment  # the experiment as the user gave it
    comparison: ComparedCandidates
    finalists: tuple[Prediction, ...]  # what is worth training; see `finalists`
    # the settings of the user's experiment with the sweep of the finalists
    sweep: Mapping[str, Any]
    remarks: tuple[str, ...]

    @property
    def trials(self) -> int:
        return prod(map(len, self.sweep["sweep"]["grid"].values()))


def advise(
    experiment: Experiment,
    *,
    choices: Sequence[ParadigmChoice] = (),
    seeds: int = 3,
    steps: RankStepTimes | None = None,
    profile: Mapping[str, Any] | None = None,
    exchange: Exchange | None = None,
    processes: int = 1,
    show: Show = lambda done, total: None,
) -> Advice:
    """Find what suits an experiment and its cluster, in time only.

    Args:
        experiment: the user's.
        choices: the paradigms; none: the standard ones, and the servers that suit the best.
        seeds: of each trial of the sweep.
        steps: the workers' measured step times, in place of those that it gives.
        profile: the measured workers and network, in place of those that it gives.
        exchange: the links and servers, in place of those that it gives.
        processes: as many as may simulate.
        show: see `Show`.

    Raises:
        ConfigError: the step times are of other workers, or they cannot have a paradigm.
        RunFailed: a process was lost, by want of memory for example.
    """
    for choice in choices:
        refuse_of_update(experiment, choice)
    settings = config.validate(_simulated(experiment, steps, profile, exchange))
    plan = prepare(settings, for_balanced=True)
    check_metrics(plan.experiment, plan.metrics, plan.primary)
    planned, simulated = PlannedTraining(plan), plan.experiment
    candidates = _candidates(experiment, simulated, choices, exchange)
    if not choices:
        candidates = [one for one in candidates if planned.can_run(one)]

    def refined(found: Sequence[Prediction]) -> Iterator[Candidate]:
        """Yield the best candidates with other servers, and with smaller pushes."""
        if exchange is None:
            for best in ComparedCandidates(tuple(found)).best:
                if planned.setting(best.candidate).has_server:
                    for servers in server_choices(simulated, SHARDS):
                        yield Candidate(best.candidate.choice, servers)
        if not choices:
            yield from with_wire(planned, found)

    comparison = compare(planned, candidates, refined, processes, show)
    few = comparison.predictions if choices else finalists(comparison.predictions)
    sweep, remarks = _sweep(experiment, plan, few, seeds)
    return Advice(
        experiment=experiment,
        comparison=comparison,
        finalists=tuple(few),
        sweep=sweep,
        remarks=(*_remarks_on_times(plan, steps), *remarks),
    )


def finalists(predictions: Sequence[Prediction], most: int = MOST) -> list[Prediction]:
    """Return the few that are worth training, each paradigm with the servers that suit it best.

    They are those that no other beats in speed, staleness and the samples of an update together:
    the fastest of each kind (fresh or stale, with small updates or large ones, with whole pushes or
    smaller ones), then others by speed; and plain BSP, which all are compared with. Of candidates
    that are equally fast the one that was tried first counts, so the simpler one.
    """
    paradigms: dict[str, Prediction] = {}
    for one in predictions:
        label = replace(one.candidate, servers=None).label
        known = paradigms.get(label)
        if known is None or one.seconds < (1 - ALIKE) * known.seconds:
            paradigms[label] = one
    every = list(paradigms.values())
    plain = paradigms.get(SYNCHRONOUS)
    front = sorted(
        (one for one in every if not any(_beats(other, one, every) for other in every)),
        key=lambda one: one.seconds,
    )
    usual = plain.update_samples if plain is not None else 0.0

    def kind(one: Prediction) -> tuple[bool, bool, bool]:
        is_large = one.update_samples > (1 + ALIKE) * usual
        return one.staleness_max > 0, is_large, one.candidate.wire is not None

    of_kinds: dict[tuple[bool, bool, bool], Prediction] = {}
    for one in front:
        of_kinds.setdefault(kind(one), one)
    chosen = {one.label: one for one in ([plain] if plain else []) + [*of_kinds.values(), *front]}
    return list(chosen.values())[:most]


def _beats(other: Prediction, one: Prediction, every: Sequence[Prediction]) -> bool:
    """Return whether another is nowhere worse, and somewhere better or tried before."""
    if other is one or other.seconds > (1 + ALIKE) * one.seconds:
        return False
    worse = (
        other.staleness_mean.value > one.staleness_mean.value
        or other.update_samples > (1 + ALIKE) * one.update_samples
        or (other.candidate.wire is not None and one.candidate.wire is None)
    )
    better = (
        other.seconds < (1 - ALIKE) * one.seconds
        or other.staleness_mean.value < one.staleness_mean.value
        or other.update_samples < (1 - ALIKE) * one.update_samples
    )
    return not worse and (better or every.index(other) < every.index(one))


# ---- what is simulated ----


def _candidates(
    experiment: Experiment,
    simulated: Experiment,
    choices: Sequence[ParadigmChoice],
    exchange: Exchange | None,
) -> list[Candidate]:
    # on Ray there is no all-reduce, so none can be advised there
    is_virtual = experiment.engine == "virtual"
    tried = choices or [
        choice
        for choice in standard_paradigms(simulated.worker_count, local=simulated.local is None)
        if choice.name != "balanced" or simulated.global_batch > simulated.worker_count
    ]
    if exchange is not None:
        return candidates_of(tried, exchange if is_virtual else replace(exchange, collectives=()))
    found = [Candidate(choice) for choice in tried]
    if is_virtual and simulated.describes_all_reduce and not choices:
        rings = (collective_of(choice, "ring") for choice in tried)
        found += [Candidate(ring) for ring in rings if ring is not None]
    return found


def _simulated(
    experiment: Experiment,
    steps: RankStepTimes | None,
    profile: Mapping[str, Any] | None,
    exchange: Exchange | None,
) -> dict[str, Any]:
    """Return the settings of the simulated experiment."""
    settings: dict[str, Any] = experiment.model_dump(mode="json", exclude={"profile", *OF_RUNS})
    settings |= {"engine": "virtual", "keep": "none", **_given_updates(experiment)}
    settings |= profile or {}
    if steps is not None:
        if steps.steps_per_exchange > 1:
            raise ConfigError(
                f"--steps: gradients of {steps.steps_per_exchange} steps accumulate in"
                f" {steps.source}, which only raysync whatif simulates."
            )
        settings["workers"] = _traced(experiment, steps)
    if exchange is not None:
        size = settings["network"]["vector_bytes"]
        links = exchange.network({slot: slot for slot in experiment.slots()})
        settings["network"] |= {"link": {}, "nodes": []} | links | {"vector_bytes": size}
        settings["cluster"]["server_shards"] = exchange.first_servers
    return settings


def _given_updates(experiment: Experiment) -> dict[str, Any]:
    """Return the settings of updates that the file gives; the task brings the others."""
    blocks = {"update": experiment.update, "local": experiment.local}
    return {
        name: block.model_dump(mode="json", exclude_unset=True)
        for name, block in blocks.items()
        if block is not None
    }


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
        members = [slot for slot, other in experiment.slots().items() if other.name == group.name]
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


def _remarks_on_times(plan: TrainingPlan, steps: RankStepTimes | None) -> Iterator[str]:
    if steps is not None:
        yield f"Step times: {steps.source}."
        yield from steps.remarks
    if plan.estimated_s:
        yield (
            f"Step times of {', '.join(plan.estimated_s)} are estimated from the operations of a"
            " step, because the experiment does not set them. To measure them, use raysync"
            " calibrate."
        )


# ---- the sweep ----


def _sweep(
    experiment: Experiment, plan: TrainingPlan, few: Sequence[Prediction], seeds: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of the user's experiment with the sweep of the finalists, and remarks.

    On the virtual engine its workers are those that were simulated. All trials have the servers of
    the fastest. Local steps have the experiment's optimizer, and the mean of the workers' weights.
    """
    simulated = plan.experiment
    remarks: list[str] = []
    left_out = {"profile", "paradigms", "seeds", "sweep", "switch_search"}
    settings: dict[str, Any] = experiment.model_dump(
        mode="json", exclude_unset=True, exclude=left_out
    ) | _given_updates(simulated)
    if experiment.engine == "virtual":
        settings |= {
            name: block
            for name, block in simulated.model_dump(mode="json", exclude_defaults=True).items()
            if name in MEASURED and getattr(simulated, name) != getattr(experiment, name)
        }
    fastest = min(few, key=lambda one: one.seconds).candidate
    if fastest.servers is not None:
        count, placement = fastest.servers
        servers = {"server_shards": count, "server_placement": placement}
        settings["cluster"] = settings.get("cluster", {}) | servers
        text = ", ".join(f"{name}: {value}" for name, value in servers.items())
        remarks.append(f"All trials have what suits the fastest: {text}.")
    if experiment.trains and plan.model.validation_set is None:
        if experiment.names_a_task:
            remarks.append(
                f"Task {plan.task.name} has no validation_set: the sweep would choose learning"
                " rates on the test set. Give the task one."
            )
        else:
            held_out = max(1, len(plan.model.train_set) // HELD_OUT)  # type: ignore[arg-type]
            data = experiment.data.model_dump(mode="json", exclude_unset=True)
            settings["data"] = data | {"validation_samples": held_out}
            settings["workload"] = {"samples": plan.workload_samples}
            remarks.append(
                f"{held_out:,} training samples are held out: the sweep chooses on them, not on the"
                " test set."
            )
    if experiment.trains and experiment.target is None:
        remarks.append(
            "There is no target, so the sweep compares final models; to compare the time to one,"
            " set target: {metric: accuracy, at_least: 0.9} in the sweep's file."
        )
    candidates = {replace(one.candidate, servers=None).label: one.candidate for one in few}
    row = _rows(simulated, fastest, rates=(1.0,))[0]
    needs_set = fastest.wire is not None or fastest.choice.name == "local"
    settings["paradigm"] = row if needs_set else _spec(fastest.choice)
    first = experiment.seeds or (experiment.seed,)
    more = range(max(first) + 1, max(first) + 1 + seeds)
    rows = [row for candidate in candidates.values() for row in _rows(simulated, candidate, RATES)]
    settings["sweep"] = {"grid": {"paradigm": rows, "seed": [*first, *more][:seeds]}}
    settings = {name: block for name, block in settings.items() if block != {}}
    config.validate(settings, source=SWEEP)
    return settings, remarks


def _spec(choice: ParadigmChoice) -> Any:
    return {"name": choice.name, **choice.parameters} if choice.parameters else choice.name


def _rows(experiment: Experiment, candidate: Candidate, rates: Sequence[float]) -> list[Any]:
    """Return the paradigm as the grid has it, once with each learning rate."""
    choice, update, local = candidate.choice, experiment.update, experiment.local
    spec = {"name": choice.name, **choice.parameters}
    wire = {} if candidate.wire is None else {"cluster.wire": candidate.wire}
    if not experiment.trains:
        changes: list[dict[str, Any]] = [{}]
    elif local is not None:
        changes = [{"local.lr": lr} for lr in _times(local.lr, rates)]
    elif choice.name != "local":
        changes = [{"update.lr": lr} for lr in _times(update.lr, rates)]
    else:
        # the server takes the mean of the workers' weights, which the optimizer of the file has
        # made
        own = update.model_dump(mode="json", exclude_unset=True, include=set(Local.model_fields))
        of_rates = [own | {"lr": lr} for lr in _times(update.lr, rates)]
        changes = [{"local": block, "update": {"lr": 1.0}} for block in of_rates]
    sets = [change | wire for change in changes]
    rows = [spec | {"set": changed} if changed else _spec(choice) for changed in sets]
    return [deepcopy(row) for row in rows]  # nothing in common, which YAML would name `&id001`


def _times(lr: float, factors: Sequence[float]) -> list[float]:
    return [float(f"{factor * lr:.4g}") for factor in factors]
