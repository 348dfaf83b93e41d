"""The settings of an experiment file, and the rules between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raysync.config.balancing import describe_groups, with_groups
from raysync.config.base import (
    MOST_SAMPLES,
    MOST_WHOLE,
    Choice,
    Named,
    ParadigmChoice,
    ParadigmSetting,
    Strict,
    by_name,
    check_plain,
)
from raysync.config.checkpoint_settings import Checkpointing, folder_or_uri, is_absolute
from raysync.config.faults import Fault, check_fault_targets
from raysync.config.goal import MEASURED
from raysync.config.network import Link, Network
from raysync.config.network_fit import check_network, check_vector_bytes
from raysync.config.secret_masking import masked
from raysync.config.stop import Stop
from raysync.config.sweep import Published, Sweep
from raysync.config.switch_search import SwitchSearch
from raysync.config.target import Target
from raysync.config.update import Data, EvaluationPlan, Local, Update, Workload
from raysync.config.workers import Cluster, WorkerGroup, select_slots, slots_in
from raysync.config.yaml_reading import write_yaml
from raysync.core.capability import Capability
from raysync.core.ids import Slot
from raysync.core.metrics import PrimaryMetric
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.errors import ConfigError, unknown_name
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
    def _names_are_distinct(self) -> Experiment:
        names = [group.name for group in self.workers]
        if len(set(names)) < len(names):
            raise ValueError(f"worker groups need different names, got {names}")
        labels = [choice.label for choice in self.paradigms]
        if len(set(labels)) < len(labels):
            raise ValueError(f"paradigms: each can be listed only once, got {', '.join(labels)}")
        return self

    @model_validator(mode="after")
    def _batches_fit(self) -> Experiment:
        for where, size, groups in self.named_batch_sizes():
            for group in groups:
                if group.devices > size:
                    raise ValueError(
                        f"{where}: {size} samples cannot be shared by the {group.devices} devices"
                        f" of each worker in group {group.name!r}"
                    )
                if group.max_batch is not None and size > group.max_batch:
                    raise ValueError(
                        f"{where}: {size} is above the {group.max_batch} samples that a worker in"
                        f" group {group.name!r} can hold (max_batch); give the group a batch_size"
                        " of its own"
                    )
        return self

    @model_validator(mode="after")
    def _workload_is_bounded(self) -> Experiment:
        iterations = self.workload.iterations_per_worker or 0
        if (samples := iterations * self.global_batch) > MOST_WHOLE:
            raise ValueError(
                f"workload: {iterations:g} iterations of {self.global_batch:,} samples are"
                f" {samples:g}; it has at most {MOST_WHOLE:g}"
            )
        return self

    @model_validator(mode="after")
    def _paradigms_fit(self) -> Experiment:
        named = {"paradigm": self.paradigm} | {
            f"paradigms[{index}]": choice for index, choice in enumerate(self.paradigms)
        }
        for where, choice in named.items():
            if not choice.can_be_made:
                continue
            try:
                why = self.make(choice).infeasible_reason(self.worker_count)
            except ConfigError as error:  # its parameters do not fit the workers
                why = str(error).removeprefix("paradigm ").removesuffix(".")
                raise ValueError(f"{where}: {why}") from error
            if why:
                raise ValueError(f"{where}: {choice.name}: {why}")
        return self

    @model_validator(mode="after")
    def _phases_exist(self) -> Experiment:
        choices = (self.paradigm, *self.paradigms)
        if not all(choice.can_be_made for choice in choices):
            return self
        phases = {phase for choice in choices for phase in choice.make().phases()} - {""}
        for where, named in (
            ("update.phases", self.update.phases),
            ("network.phases", self.network.phases),
        ):
            for name in named:
                if not phases:
                    raise ValueError(f"{where}: {name!r}, but none of the paradigms has phases")
                if name not in phases:
                    raise unknown_name("phase", name, phases, where=where)
        return self

    @model_validator(mode="after")
    def _local_steps_fit(self) -> Experiment:
        if self.local is None:
            return self
        if self.update.delay_compensation is not None:
            raise ValueError(
                "update.delay_compensation: it corrects gradients, but with `local` a push is the"
                " change of the weights by local steps; leave it out"
            )
        scalings = {
            f"update.phases.{name}": phase.lr_scaling for name, phase in self.update.phases.items()
        }
        if "lr_scaling" in self.update.model_fields_set:
            scalings["update"] = self.update.lr_scaling
        for where, scaling in scalings.items():
            if scaling == "linear":
                raise ValueError(
                    f"{where}.lr_scaling: linear: with `local` an update is the mean of the"
                    " workers' changes, which does not grow with their number; leave it out"
                )
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
    def _codec_fits(self) -> Experiment:
        wire = self.cluster.wire
        if wire.name in ("int8", "top-k") and self.update.combine == "sum":
            raise ValueError(
                f"update.combine: sum: with cluster.wire: {wire.name} the errors of all pushes"
                " would add up, too; allowed: mean"
            )
        return self

    @model_validator(mode="after")
    def _has_min_workers(self) -> Experiment:
        if (least := self.cluster.min_workers) > (count := self.worker_count):
            raise ValueError(
                f"cluster.min_workers: {least}, but there {'are' if count > 1 else 'is'} only"
                f" {count} worker{'s' * (count > 1)}"
            )
        return self

    @model_validator(mode="after")
    def _server_fits_its_gpu(self) -> Experiment:
        share, [first, *_] = self.cluster.server_gpus, self.workers
        if share and not (first.gpus <= 1 and share < first.gpus / 2):
            raise ValueError(
                f"cluster.server_gpus: {share:g}: the server shares the first worker's GPU, and"
                f" takes less than half of it, but {first.name!r} has gpus: {first.gpus:g}"
            )
        return self

    @model_validator(mode="after")
    def _has_one_server_where_it_must(self) -> Experiment:
        if (shards := self.cluster.server_shards) == 1:
            return self
        needs = f"needs cluster.server_shards: 1, not {shards}; a shard"
        if self.update.project_radius is not None:
            raise ValueError(
                f"update.project_radius: {needs} does not know the norm of the whole model"
            )
        if self.update.is_muon:
            raise ValueError(f"update.optimizer: muon: {needs} would cut a matrix")
        return self

    @model_validator(mode="after")
    def _fits_engine(self) -> Experiment:
        if self.engine == "virtual":
            return self
        if self.timing == "only":
            raise ValueError(
                "timing: only needs engine: virtual; on Ray, step times come from computing"
                " gradients"
            )
        for group in self.workers:
            if group.speed > 1 and not group.emulates_steps:
                raise ValueError(
                    f"workers: {group.name!r} has a speed above 1, which needs step_s,"
                    " per_sample_s, flops_per_s or trace: emulation can slow a real step down,"
                    " but not speed it up"
                )
        return self

    @model_validator(mode="after")
    def _network_fits(self) -> Experiment:
        if self.engine == "virtual":
            check_vector_bytes(self.network, self.workers, trains=self.trains)
        check_network(self.network, self.workers, self.server_hosts())
        return self

    @model_validator(mode="after")
    def _can_stop(self) -> Experiment:
        if self.stop is None:
            return self
        if self.stop.at_target and self.target is None:
            raise ValueError(
                "stop.at_target: there is no target; give one, such as target:"
                " {metric: accuracy, at_least: 0.9}"
            )
        if self.stop.needs_evaluations and not self.trains:
            raise ValueError("stop: nothing is evaluated with timing: only; give after_s alone")
        return self

    @model_validator(mode="after")
    def _faults_have_targets(self) -> Experiment:
        check_fault_targets(self.faults, self.workers)
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
