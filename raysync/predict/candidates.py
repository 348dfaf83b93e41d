"""What can be tried: a paradigm with its parameters, the servers, the format of pushes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from raysync.config import Experiment, ParadigmChoice
from raysync.config.base import by_name
from raysync.config.cluster_settings import WireFormat
from raysync.config.yaml_reading import read_yaml
from raysync.decoupled.plan import check_training
from raysync.errors import ConfigError
from raysync.paradigms.balanced import Balanced
from raysync.predict.exchange import Exchange, collective_of, is_collective, slowest_link
from raysync.predict.setting import Setting
from raysync.training.preparation import TrainingPlan

SYNCHRONOUS = "bsp"  # what most trainers do: it is always among the candidates
LOCAL_STEPS = (8, 32)  # how many local steps are tried
# the share of the work under BSP in the first setup of Sync-Switch's paper
SWITCH_FRACTION = 0.0625


@dataclass(frozen=True)
class Candidate:
    """Settings of an experiment that could be advised."""

    choice: ParadigmChoice
    # the number of servers and their placement; None: as the experiment says
    servers: tuple[int, str] | None = None
    wire: str | None = None  # the format of pushes; None: as the experiment says

    @property
    def label(self) -> str:
        """Its name in the answer: the paradigm, and what else differs from the experiment."""
        parts = [self.choice.label]
        if self.servers is not None:
            count, placement = self.servers
            where = "apart" if placement == "apart" else "beside workers"
            parts.append(f"{count} server{'s' * (count > 1)} {where}")
        if self.wire is not None:
            parts.append(f"pushes in {self.wire}")
        return ", ".join(parts)

    @property
    def is_synchronous(self) -> bool:
        """Whether plain data-parallel training does the same: BSP, balanced or not."""
        choice = self.choice
        inner: Any = {"name": choice.name, **choice.parameters}
        if choice.name == Balanced.name:
            inner = by_name(choice.parameters.get("paradigm", SYNCHRONOUS))
        is_bsp = inner["name"] == SYNCHRONOUS and set(inner) <= {"name", "exchange"}
        return is_bsp and self.wire is None

    def applied_to(self, experiment: Experiment) -> Experiment:
        changed: dict[str, Any] = {}
        if self.servers is not None:
            changed["server_shards"], changed["server_placement"] = self.servers
        if self.wire is not None:
            changed["wire"] = WireFormat.model_validate({"name": self.wire})
        cluster = experiment.cluster.model_copy(update=changed)
        if is_collective(self.choice):
            experiment = slowest_link(experiment)
        return experiment.model_copy(update={"paradigm": self.choice, "cluster": cluster})


def setting_of(plan: TrainingPlan, candidate: Candidate) -> Setting:
    """Return what is simulated of a candidate, on the workers of a plan.

    Raises:
        ConfigError: they cannot have it, or it cuts the model into stages.
    """
    experiment, choice = candidate.applied_to(plan.experiment), candidate.choice
    setting = Setting.of(replace(plan, experiment=experiment), choice)
    if setting is None:
        raise ConfigError(
            f"--paradigm {choice.label}: it cuts the model into stages, whose times are not known."
        )
    if why := experiment.make(choice).infeasible_reason(experiment.worker_count):
        raise ConfigError(f"--paradigm {choice.label}: {why}.")
    check_training(setting.training, setting.training.make(choice))
    return setting


def standard_paradigms(workers: int, *, local: bool = True) -> tuple[ParadigmChoice, ...]:
    """Return the paradigms that are tried unless others are given.

    SSP has the bounds that papers compare; K-sync and Hybrid wait for half of the workers; one
    worker in twenty is a backup, as in Chen et al. (2016), 4 of 100. K-batch-sync gathers 4 and 8
    batches a worker: no gradient is stale, but batches are larger.

    Args:
        workers: their number; one has nobody to wait for.
        local: whether local steps are tried, too.
    """
    half = max(1, workers // 2)
    specs: list[dict[str, Any]] = [
        {"name": "bsp"},
        {"name": "balanced"},
        {"name": "ssp", "staleness": 1},
        {"name": "ssp", "staleness": 3},
        {"name": "ssp", "staleness": 10},
        {"name": "lagtuner", "bound": "hard"},
        {"name": "lagtuner", "bound": "literal"},
        {"name": "k-sync", "k": half},
        {"name": "k-batch-sync", "k": 4 * workers},
        {"name": "k-batch-sync", "k": 8 * workers},
        {"name": "backup-workers", "backups": max(1, round(workers / 20))},
        {"name": "hybrid", "k": half, "staleness_tolerance": 3},
        {"name": "sync-switch", "fraction": SWITCH_FRACTION},
        {"name": "asp"},
    ]
    if workers == 1:
        specs = specs[:1]
    if local:
        specs += [{"name": "local", "paradigm": "bsp", "steps": steps} for steps in LOCAL_STEPS]
    choices = map(ParadigmChoice.model_validate, specs)
    return tuple(choice for choice in choices if not choice.make().infeasible_reason(workers))


def paradigms_in(texts: Sequence[str]) -> tuple[ParadigmChoice, ...]:
    """Return the paradigms that `--paradigm` names: `ssp`, or `{name: ssp, staleness: 3}`.

    Raises:
        ConfigError: there is no such paradigm, or one is named twice.
    """
    choices: list[ParadigmChoice] = []
    for text in texts:
        where = f"--paradigm {text}"
        value = by_name(read_yaml(text, where))
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise ConfigError(f"{where}: write a name, or {{name: ssp, staleness: 3}}.")
        try:
            choices.append(ParadigmChoice.model_validate(value))
        except ValidationError as error:
            raise ConfigError(f"{where}: {error.errors()[0]['ctx']['error']}") from error
    labels = [choice.label for choice in choices]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(f"--paradigm {repeated}: it is named twice.")
    return tuple(choices)


def candidates_of(choices: Sequence[ParadigmChoice], exchange: Exchange | None) -> list[Candidate]:
    """Return the paradigms with every way of exchanging gradients that they go with.

    Raises:
        ConfigError: there is none.
    """
    if exchange is None:
        return [Candidate(choice) for choice in choices]
    found: list[Candidate] = []
    several = len(exchange.servers) > 1
    ways = [(count, "apart") if several else None for count in exchange.servers]
    for choice in choices:
        servers = [None] if is_collective(choice) else ways
        found += [Candidate(choice, way) for way in servers]
        others = (collective_of(choice, name) for name in exchange.collectives)
        found += [Candidate(other) for other in others if other is not None]
    if not found:
        names = ", ".join(choice.label for choice in choices)
        raise ConfigError(f"--exchange: {names} needs a server; add --exchange servers:1.")
    return list({one.label: one for one in found}.values())
