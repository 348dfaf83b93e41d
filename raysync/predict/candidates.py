"""What can be tried: a paradigm with its parameters, the servers, the learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from raysync.config import Experiment, ParadigmChoice
from raysync.config.base import by_name
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError
from raysync.paradigms.balanced import Balanced
from raysync.predict.exchange import Exchange, collective_of, is_collective, slowest_link
from raysync.predict.remedies import SHARDS, balanced_spec, server_choices

if TYPE_CHECKING:
    import optuna

SYNCHRONOUS = "bsp"
"""What most trainers do: it is always among the candidates."""
SWITCH_FRACTION = 0.0625
"""The share of the work under BSP in the first setup of Sync-Switch's paper."""


@dataclass(frozen=True)
class Candidate:
    """Settings of an experiment that could be advised."""

    choice: ParadigmChoice
    servers: tuple[int, str] | None = None
    """The number of servers and their placement; None: as the experiment says."""
    lr: float | None = None
    """The learning rate; None: as the experiment says."""

    @property
    def label(self) -> str:
        """Its name in the answer: the paradigm, and what else differs from the experiment."""
        parts = [self.choice.label]
        if self.servers is not None:
            count, placement = self.servers
            where = "apart" if placement == "apart" else "beside workers"
            parts.append(f"{count} server{'s' * (count > 1)} {where}")
        if self.lr is not None:
            parts.append(f"lr {self.lr:g}")
        return ", ".join(parts)

    @property
    def is_synchronous(self) -> bool:
        """Whether plain data-parallel training does the same: BSP, balanced or not."""
        choice = self.choice
        inner: Any = {"name": choice.name, **choice.parameters}
        if choice.name == Balanced.name:
            inner = by_name(choice.parameters.get("paradigm", SYNCHRONOUS))
        return inner["name"] == SYNCHRONOUS and set(inner) <= {"name", "exchange"}

    def with_lr(self, lr: float | None) -> Candidate:
        return replace(self, lr=lr)

    def applied_to(self, experiment: Experiment) -> Experiment:
        changed: dict[str, Any] = {"paradigm": self.choice}
        if self.servers is not None:
            count, placement = self.servers
            servers = {"server_shards": count, "server_placement": placement}
            changed["cluster"] = experiment.cluster.model_copy(update=servers)
        if self.lr is not None:
            changed["update"] = experiment.update.model_copy(update={"lr": self.lr})
        if is_collective(self.choice):
            experiment = slowest_link(experiment)
        return experiment.model_copy(update=changed)


def standard_paradigms(workers: int) -> tuple[ParadigmChoice, ...]:
    """Return the paradigms that are tried unless others are given.

    SSP has the bounds that papers compare; K-sync and Hybrid wait for half of the workers; one
    worker in twenty is a backup, as in Chen et al. (2016), 4 of 100.
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
        {"name": "backup-workers", "backups": max(1, round(workers / 20))},
        {"name": "hybrid", "k": half, "staleness_tolerance": 3},
        {"name": "sync-switch", "fraction": SWITCH_FRACTION},
        {"name": "asp"},
    ]
    choices = map(ParadigmChoice.model_validate, specs)
    return tuple(each for each in choices if not each.make().infeasible_reason(workers))


def families(workers: int) -> dict[str, dict[str, tuple[Any, Any, Any]]]:
    """Map paradigms that a search chooses from to parameters: least, largest and first value."""
    half = max(1, workers // 2)
    return {
        SYNCHRONOUS: {},
        "asp": {},
        "ssp": {"staleness": (0, 32, 3)},
        "lagtuner": {"s_lower": (0, 8, 3), "slack": (1, 24, 12)},  # below s_upper
        "k-sync": {"k": (1, workers, half)},
        "backup-workers": {"backups": (1, half, 1)},
        "hybrid": {"k": (1, workers, half), "staleness_tolerance": (0, 16, 3)},
        "sync-switch": {"fraction": (0.0, 0.75, SWITCH_FRACTION)},
    }


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
    for choice in choices:
        if is_collective(choice):
            found.append(Candidate(choice))
            continue
        several = len(exchange.servers) > 1
        found += [
            Candidate(choice, (count, "apart") if several else None) for count in exchange.servers
        ]
        others = (collective_of(choice, name) for name in exchange.collectives)
        found += [Candidate(other) for other in others if other is not None]
    if not found:
        names = ", ".join(choice.label for choice in choices)
        raise ConfigError(f"--exchange: {names} needs a server; add --exchange servers:1.")
    return list({each.label: each for each in found}.values())


class Space:
    """The candidates that a search chooses from."""

    def __init__(
        self,
        experiment: Experiment,
        choices: Sequence[ParadigmChoice] = (),
        servers: Sequence[int] = SHARDS,
        collectives: Sequence[str] = (),
    ) -> None:
        """
        Args:
            experiment: the workers, the network, the servers.
            choices: the paradigms, as they are; none: the families, with their parameters.
            servers: the numbers of servers that are tried beside the experiment's own.
            collectives: all-reduces that are tried in the place of servers.
        """
        self._experiment, self._workers = experiment, experiment.worker_count
        self._choices = {choice.label: choice for choice in choices}
        self._families = families(self._workers) if self._workers > 1 else {SYNCHRONOUS: {}}
        self._servers = [None, *server_choices(experiment, servers)]
        self._exchanges = ["server", *collectives]

    def standard(self) -> Iterator[dict[str, Any]]:
        """Yield the parameters of the candidates that are tried first.

        Each family is tried on the experiment's own servers, with equal and with balanced batches.
        """
        if self._choices:
            for label in self._choices:
                yield {"paradigm": label, "servers": 0}
            return
        own: dict[str, Any] = {"servers": 0, "exchange": "server"}
        for exchange in self._exchanges[1:]:
            yield own | {"paradigm": SYNCHRONOUS, "balanced": False, "exchange": exchange}
        for balanced in (False, True):
            for name, ranges in self._families.items():
                first = {f"{name}.{key}": ranges[key][-1] for key in ranges}
                yield own | {"paradigm": name, "balanced": balanced} | first

    def suggest(self, trial: optuna.Trial) -> Candidate | None:
        """Return the candidate of a trial; None: the workers cannot have it."""
        names = list(self._choices or self._families)
        name = trial.suggest_categorical("paradigm", names)
        choice = self._choices.get(name) or self._suggest_family(trial, name)
        index = trial.suggest_int("servers", 0, len(self._servers) - 1)
        if choice is None or self._experiment.make(choice).infeasible_reason(self._workers):
            return None
        if is_collective(choice):
            return Candidate(choice)
        return Candidate(choice, self._servers[index])

    def _suggest_family(self, trial: optuna.Trial, name: str) -> ParadigmChoice | None:
        parameters: dict[str, Any] = {}
        if name == SYNCHRONOUS and len(self._exchanges) > 1:
            exchange = trial.suggest_categorical("exchange", self._exchanges)
            parameters |= {} if exchange == "server" else {"exchange": exchange}
        for key, (least, largest, _) in self._families[name].items():
            suggest = trial.suggest_float if isinstance(least, float) else trial.suggest_int
            parameters[key] = suggest(f"{name}.{key}", least, largest)
        if name == "lagtuner":
            parameters["s_upper"] = parameters["s_lower"] + parameters.pop("slack")
        balanced = trial.suggest_categorical("balanced", [False, True])
        if balanced and self._experiment.global_batch <= self._workers:
            return None  # no sample can be moved
        spec = {"name": name, **parameters}
        if balanced:
            spec = balanced_spec(name, parameters, self._experiment.micro_batch)
        return ParadigmChoice.model_validate(spec)
