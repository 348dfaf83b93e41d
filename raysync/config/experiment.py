"""The settings of an experiment file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raysync.config.balancing import describe_groups, with_groups
from raysync.config.base import (
    MOST_SAMPLES,
    Choice,
    Named,
    ParadigmChoice,
    ParadigmSetting,
    Strict,
    by_name,
    check_paradigm_labels,
    check_paradigms,
    check_plain,
)
from raysync.config.checkpoint_settings import Checkpointing, folder_or_uri, is_absolute
from raysync.config.cluster_settings import Cluster, check_cluster
from raysync.config.faults import Fault, check_fault_targets
from raysync.config.goal import MEASURED
from raysync.config.network import Link, Network, check_phases
from raysync.config.network_fit import check_network
from raysync.config.secret_masking import masked
from raysync.config.stop import Stop, check_stop
from raysync.config.sweep import Published, Sweep
from raysync.config.switch_search import SwitchSearch
from raysync.config.target import Target
from raysync.config.update import Data, EvaluationPlan, Local, Update, Workload, check_local_steps
from raysync.config.workers import (
    WorkerGroup,
    check_batch_sizes,
    check_engine,
    check_group_names,
    check_workload,
    select_slots,
    slots_in,
)
from raysync.config.yaml_reading import write_yaml
from raysync.core.capability import Capability
from raysync.core.ids import Slot
from raysync.core.metrics import PrimaryMetric
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.errors import unknown_name
from raysync.paradigms import ALL_REDUCE_BASELINE, COMPARED, DEFAULT_PARADIGM

STANDARD_COMPARISON = tuple(ParadigmChoice.model_validate(by_name(spec)) for spec in COMPARED)
# compared on the virtual engine if links between workers are described, so that it has a time
ALL_REDUCE = ParadigmChoice.model_validate(by_name(ALL_REDUCE_BASELINE))

# any `model` and `data` go with these; `training.tasks.supervised` has them
BUILT_IN_TASKS = ("classification", "language-model", "regression")
GIVEN = "given:"  # the prefix of a task's name in the record of a run that got a Python object

# name -> class: a `LibraryRun` for a library, else a `Sink`
TRACKERS = {
    "tensorboard": "raysync.tracking.tensorboard:EventFile",
    "wandb": "raysync.tracking.wandb_run:WandbRun",
    "mlflow": "raysync.tracking.mlflow_run:MlflowRun",
}


def _listed(value: object) -> object:
    return [value] if isinstance(value, str | dict) else value


Choices = Annotated[tuple[Choice, ...], BeforeValidator(_listed)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


# the rules between blocks: each stands beside the later one, and raises for the first mistake
CHECKS = (
    check_group_names,
    check_paradigm_labels,
    check_batch_sizes,
    check_workload,
    check_paradigms,
    check_phases,
    check_local_steps,
    check_cluster,
    check_engine,
    check_network,
    check_stop,
    check_fault_targets,
)


def _sets_steps(paradigm: AnyParadigm) -> bool:
    """Return whether a paradigm itself says how many local steps a worker makes, or has none."""
    return not isinstance(paradigm, Paradigm) or any(
        capability is Capability.LOCAL_STEPS for capability, _ in paradigm.demands()
    )


class Experiment(Strict):
    """The model, its data, the workers and the paradigms of an experiment."""

    name: str = Field(
        "experiment",
        pattern=r"^[A-Za-z0-9_+][A-Za-z0-9_.+-]*$",
        description="the name of the experiment, and of the folder that holds its run folders",
    )
    seed: Seed = Field(0, description="seed of all draws: initial weights, batches, jitter, faults")
    seeds: tuple[Seed, ...] = Field(
        (), description="`compare` repeats every paradigm with each of these seeds"
    )
    engine: Literal["ray", "virtual"] = Field(
        "ray",
        description=(
            "ray: real actors, real seconds; virtual: one process, a "
            "virtual clock, the same on every run"
        ),
    )
    timing: Literal["with-gradients", "only"] = Field(
        "with-gradients",
        description=(
            "only: nothing is trained, to see which workers wait for which; virtual engine only"
        ),
    )
    task: Annotated[Named | None, BeforeValidator(by_name)] = Field(
        None,
        description=(
            "what is trained: classification, language-model or regression, of `model` and `data`;"
            " or yours, with a model and data of its own: package.module:Class; or"
            " lightning:package.module:Class, hf:NAME; default: the one of the three that goes"
            " with `data`"
        ),
    )
    model: Choice = Field(
        Named(name="mlp"),
        description=(
            "a registered name (`raysync list models`), timm:NAME, torchvision:NAME, or yours:"
            " package.module:function"
        ),
    )
    data: Annotated[Data, BeforeValidator(by_name)] = Data()
    paradigm: ParadigmSetting = Field(
        ParadigmChoice(name=DEFAULT_PARADIGM),
        description="the paradigm that `run` uses (`raysync list paradigms`)",
    )
    paradigms: tuple[ParadigmSetting, ...] = Field(
        STANDARD_COMPARISON,
        min_length=1,
        description=(
            "what `compare` compares; the default also has bsp(exchange=all-reduce) on the virtual"
            " engine, where the links of workers are described"
        ),
    )
    update: Update = Update()
    local: Local | None = Field(
        None,
        description=(
            "local steps: workers make optimizer steps of their own between two pushes:"
            " `{steps: 8, lr: 0.1}`; default: each push is the gradient of one batch"
        ),
    )
    workload: Workload = Workload(epochs=1)
    batch_size: int = Field(
        32,
        gt=0,
        le=MOST_SAMPLES,
        description="samples of one worker's iteration; a group can have a batch_size of its own",
    )
    micro_batch: int | None = Field(
        None,
        gt=0,
        description=(
            "the samples that a device computes at once; it adds their gradients up to the"
            " gradient of its batch; default: the whole batch"
        ),
    )
    profile: str | None = Field(
        None,
        description=(
            "a cluster by name (`raysync list clusters`) or file; it sets workers, "
            "network, and the placement of the servers"
        ),
    )
    workers: tuple[WorkerGroup, ...] = Field((WorkerGroup(count=4),), min_length=1)
    network: Network = Network()
    faults: tuple[Fault, ...] = Field(
        (), description="slow-downs, latency, crashes and kills to inject"
    )
    evaluation: EvaluationPlan = EvaluationPlan()
    init_from: Path | None = Field(
        None,
        description=(
            "the weights to start from, told by content: a safetensors file, a file of"
            " `torch.save`, an index of parts (`*.index.json`), a folder of parts, or a run folder,"
            " for its final model; default: the initial weights of the model"
        ),
    )
    keep: Literal["final", "best", "none"] = Field(
        "final",
        description=(
            "which trained model the run folder keeps; final: the model at the last evaluation,"
            " in `model.safetensors`; best: also the best model by the task's primary metric, in"
            " `model-best.safetensors`"
        ),
    )
    target: Target | None = Field(
        None, description="for the time to the target: `{metric: accuracy, at_least: 0.9}`"
    )
    stop: Stop | None = Field(
        None, description="end the run early: `{patience: 5}`, `{at_target: true}`, `{after_s: 60}`"
    )
    checkpoint: Checkpointing | None = Field(
        None,
        description=(
            "[checkpoints](../record/README.md#checkpoints-and-resuming), from which a lost run"
            " can resume: `{every_s: 60}`; default: none are taken"
        ),
    )
    cluster: Cluster = Cluster()
    track: Choices = Field(
        (),
        description=(
            f"trackers that each run is logged with: {', '.join(TRACKERS)}, with"
            " [their arguments](../tracking/README.md)"
        ),
    )
    callbacks: Choices = Field(
        (),
        description=(
            "[callbacks](../tracking/README.md) of your own: package.module:Class, with arguments;"
            " each run makes its own objects"
        ),
    )
    sweep: Sweep | None = Field(None, description="what `raysync sweep` varies")
    switch_search: SwitchSearch | None = Field(
        None, description="what `raysync switch-search` searches for"
    )
    published: Published | None = Field(None, description="a published table, for reports")
    output: Annotated[Path | str, BeforeValidator(folder_or_uri)] = Field(
        Path("runs"),
        json_schema_extra={"type": "string"},
        description=(
            "a folder, or a URI that pyarrow's file systems know: s3://bucket/runs, gs://...; "
            "records go to OUTPUT/NAME/TIME-PARADIGM-ID/"
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _settings_are_plain(cls, settings: Any) -> Any:
        check_plain(settings)
        return settings

    @field_validator("track")
    @classmethod
    def _trackers_exist(cls, choices: tuple[Named, ...]) -> tuple[Named, ...]:
        names = [choice.name for choice in choices]
        for index, name in enumerate(names):
            if name not in TRACKERS:
                where = f"track[{index}]"
                raise unknown_name("tracker", name, TRACKERS, where=where, listed=TRACKERS)
            if name in names[:index]:
                raise ValueError(f"{name} is listed twice")
        return choices

    @model_validator(mode="after")
    def _add_all_reduce(self) -> Experiment:
        # the default has an all-reduce if its time is known
        is_default = "paradigms" not in self.model_fields_set and self.worker_count > 1
        if is_default and self.engine == "virtual" and self.describes_all_reduce:
            first, *others = STANDARD_COMPARISON
            object.__setattr__(self, "paradigms", (first, ALL_REDUCE, *others))
        return self

    @model_validator(mode="after")
    def _set_outer_defaults(self) -> Experiment:
        # a push of local steps is a change of the weights, no gradient: the mean is applied whole
        if self.local is not None:
            given = self.update.model_fields_set
            outer = {"lr_scaling": "none", "lr": 1.0}
            outer = {name: value for name, value in outer.items() if name not in given}
            update = self.update.model_copy(update=outer)
            # these are defaults, which a row without local steps does not have
            object.__setattr__(update, "__pydantic_fields_set__", set(given))
            object.__setattr__(self, "update", update)
        return self

    @model_validator(mode="after")
    def _blocks_fit(self) -> Experiment:
        for check in CHECKS:
            check(self)
        return self

    @property
    def names_a_task(self) -> bool:
        """Whether the task is the user's own, with its own model and data."""
        return self.task is not None and self.task.name not in BUILT_IN_TASKS

    @property
    def label(self) -> str:
        """The paradigm in tables and folders: its own label, with the block `local` around it."""
        choice = self.paradigm
        if self.local is None or (choice.can_be_made and _sets_steps(choice.make())):
            return choice.label
        return f"local({choice.label}, steps={self.local.steps})"

    @property
    def subject(self) -> str:
        """A short name of what is trained: `mlp on digits`, or the name of the user's own task."""
        if self.task is not None and self.names_a_task:
            return self.task.name.removeprefix(GIVEN)
        return f"{self.model.name} on {self.data.name}"

    @property
    def named_metrics(self) -> dict[str, str]:
        """Setting -> the metric that evaluations must have for it."""
        named = {} if self.target is None else {"target.metric": self.target.metric}
        if self.stop is None:
            return named
        if self.stop.metric is not None:
            named["stop.metric"] = self.stop.metric
        for index, goal in enumerate(self.stop.when):
            if goal.metric not in MEASURED:
                named[f"stop.when[{index}].metric"] = goal.metric
        return named

    def aim(self, primary: PrimaryMetric) -> Target | None:
        """Return the target or, without one, the first goal of `stop.when` that can be one."""
        if self.target is not None or self.stop is None:
            return self.target
        return next(filter(None, (goal.target(primary) for goal in self.stop.when)), None)

    @property
    def trains(self) -> bool:
        """Whether gradients are computed, and not only times."""
        return self.timing == "with-gradients"

    @property
    def worker_state(self) -> tuple[str, ...]:
        """The state, in words, that only the workers have from push to push."""
        states = []
        if self.local is not None and self.local.keeps_state:
            states.append("the optimizer's state")
        if self.cluster.wire.feeds_back:
            states.append("the error feedback of pushes")
        return tuple(states)

    @property
    def has_links(self) -> bool:
        """Whether links between workers are described."""
        return any(
            link != Link() for link in (self.network.link, *(group.link for group in self.workers))
        )

    @property
    def describes_all_reduce(self) -> bool:
        """Whether an all-reduce has a known time, from the workers' own links.

        It has none over links of nodes and regions, or if gradients travel in another format than
        they are added in.
        """
        shares = self.network.nodes or self.network.regions is not None
        is_plain = self.cluster.wire.is_plain
        return self.has_links and is_plain and not shares

    @property
    def worker_count(self) -> int:
        """The workers of all groups."""
        return sum(group.count for group in self.workers)

    def named_paradigms(self) -> Iterator[tuple[str, ParadigmChoice]]:
        """Yield the path of each paradigm, and the paradigm: `paradigm`, `paradigms[0]`, ..."""
        yield "paradigm", self.paradigm
        for index, choice in enumerate(self.paradigms):
            yield f"paradigms[{index}]", choice

    def slots(self) -> dict[str, WorkerGroup]:
        """Return slot (`group-index`) -> group for every worker, in the order of the file."""
        return slots_in(self.workers)

    def server_hosts(self) -> dict[str, WorkerGroup]:
        """Return the servers' slots -> their groups; empty if servers are apart from workers."""
        slots = list(self.slots().items())
        return dict(slots[host] for host in self.cluster.hosts(len(slots)))

    @property
    def server_region(self) -> str | None:
        """The region of the servers; None: there are no regions."""
        regions, hosts = self.network.regions, self.server_hosts()
        if regions is None or not hosts:
            return None if regions is None else regions.server
        return next(group.region for group in hosts.values())

    def make(self, choice: ParadigmChoice, smallest_batch: int = 1) -> AnyParadigm:
        """Create a fresh paradigm for the workers of this experiment.

        Args:
            smallest_batch: the fewest samples that a device can compute at once.

        Raises:
            ConfigError: see `ParadigmChoice.make`.
        """
        groups = describe_groups(self.workers, self.batch_size, smallest_batch)
        return choice.make(with_groups(choice.name, choice.parameters, groups))

    def batch_size_of(self, slot: str) -> int:
        """Return the samples of an iteration of a slot's worker."""
        name = Slot(slot).group
        [group] = [group for group in self.workers if group.name == name]
        return group.batch_size or self.batch_size

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Slot -> the samples of an iteration of its worker."""
        return {slot: group.batch_size or self.batch_size for slot, group in self.slots().items()}

    @property
    def global_batch(self) -> int:
        """The samples of one iteration of all workers."""
        return sum(group.count * (group.batch_size or self.batch_size) for group in self.workers)

    def named_batch_sizes(self) -> Iterator[tuple[str, int, tuple[WorkerGroup, ...]]]:
        """Yield the path of each batch-size setting, the size, and its groups."""
        silent = tuple(group for group in self.workers if group.batch_size is None)
        yield "batch_size", self.batch_size, silent
        for group in self.workers:
            if group.batch_size is not None:
                yield f"workers: {group.name}: batch_size", group.batch_size, (group,)
        for choice in (self.paradigm, *self.paradigms):
            paradigm = choice.make() if choice.can_be_made else None
            if isinstance(paradigm, Paradigm):
                for parameter, size in paradigm.named_batch_sizes().items():
                    yield f"paradigm {paradigm.name}: {parameter}", size, self.workers

    def slots_of(self, names: tuple[str, ...]) -> list[str]:
        """Return the slots that a fault's `workers` names, by slot or group; no name: all."""
        return select_slots(self.workers, names)

    def workload_samples(self, train_samples: int) -> int:
        """Return the workload in samples, for a training set of this size."""
        work = self.workload
        if work.epochs is not None:
            return max(1, round(work.epochs * train_samples))
        if work.samples is not None:
            return work.samples
        assert work.iterations_per_worker is not None
        return work.iterations_per_worker * self.global_batch

    def plain(self) -> dict[str, Any]:
        """Return the experiment as plain data: a profile as its settings, and secrets masked."""
        settings = self.model_dump(mode="json", exclude={"profile"})
        if self.names_a_task:  # it has a model and data of its own, so these did not act
            del settings["model"], settings["data"]["name"]
        tracked = [
            {key: masked(value) if isinstance(value, str) else value for key, value in one.items()}
            for one in settings["track"]
        ]
        if self.checkpoint is not None and self.checkpoint.output is not None:
            settings["checkpoint"]["output"] = masked(settings["checkpoint"]["output"])
        return settings | {"output": masked(settings["output"]), "track": tracked}

    @property
    def recorded(self) -> Experiment:
        """The experiment as its run's record has it, without an absolute `output`.

        A record can be copied; a run from there writes below the folder in which it is started.
        """
        default = type(self).model_fields["output"].default
        return self.model_copy(update={"output": default}) if is_absolute(self.output) else self

    def to_yaml(self) -> str:
        """Write the experiment as a file that `load` reads; see `plain`."""
        return write_yaml(self.plain())
