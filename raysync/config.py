"""The experiment file: what is trained, on what, by whom, under which rule. Every field says its meaning and unit.

`load` reads YAML, lays `--set` overrides over it and validates; whatever is wrong becomes a `ConfigError` with the path of
the setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms import make


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Named(BaseModel):
    """Something by name, with parameters: `ssp`, or `{name: ssp, staleness: 3}`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(description="a registered name, or the user's own package.module:Name")

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything beside the name."""
        return dict(self.model_extra or {})


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class ParadigmChoice(Named):
    """A synchronisation rule."""

    @model_validator(mode="after")
    def _exists(self) -> ParadigmChoice:
        self.make()
        return self

    def make(self) -> Paradigm:
        """A fresh paradigm."""
        return make(self.name, **self.parameters)

    @property
    def label(self) -> str:
        """What tables and folders call it: the name and the parameters that were given."""
        short = self.name.rpartition(":")[2]
        given = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{short}({given})" if given else short


Choice = Annotated[Named, BeforeValidator(_named)]
Rule = Annotated[ParadigmChoice, BeforeValidator(_named)]


STANDARD_COMPARISON = (
    ParadigmChoice(name="bsp"),
    ParadigmChoice(name="asp"),
    ParadigmChoice.model_validate({"name": "ssp", "staleness": 3}),
    ParadigmChoice.model_validate({"name": "lagtuner", "bound": "hard"}),
    ParadigmChoice.model_validate({"name": "lagtuner", "bound": "literal"}),
)


class Data(_Strict):
    """What is learned from."""

    name: str = Field("digits", description="a registered data set, or the user's own package.module:function")
    data_dir: Path | None = Field(None, description="folder of torchvision's data sets; downloads go there")
    partition: Literal["iid", "dirichlet", "shared"] = Field("iid", description="how workers share the training set")
    alpha: float = Field(0.5, gt=0, description="of `dirichlet`: small means that a worker sees few classes")
    augment: Literal["none", "crop-flip"] = Field("none", description="crop-flip: shift by up to 4 pixels, mirror half")
    train_samples: int | None = Field(None, gt=0, description="use only the first that many training samples")
    test_samples: int | None = Field(None, gt=0, description="use only the first that many test samples")
    parameters: dict[str, Any] = Field(default_factory=dict, description="passed to the data set's function")


Share = Annotated[float, Field(ge=0, lt=1)]


class Schedule(_Strict):
    """The learning rate as a function of progress (0 at the start, 1 at the end) or of updates."""

    name: Literal["constant", "milestones", "cosine", "inverse-sqrt"] = "constant"
    milestones: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field((), description="progress at which lr drops")
    factor: float = Field(0.1, gt=0, description="of `milestones`: what lr is multiplied by at each")
    warmup: float = Field(0.0, ge=0, lt=1, description="progress up to which lr rises linearly from 0")


class Update(_Strict):
    """How the server turns gradients into a new model."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.05, gt=0, description="learning rate of one push")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd only")
    nesterov: bool = Field(False, description="sgd only; needs momentum")
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[Share, Share] = Field((0.9, 0.999), description="adam and adamw only")
    schedule: Annotated[Schedule, BeforeValidator(_named)] = Schedule()
    lr_scaling: Literal["linear", "none"] = Field("linear", description="linear: times the number of pushes in the update")
    combine: Literal["mean", "sum"] = Field("mean", description="of an update's gradients; mean weighs by samples")
    clip_norm: float | None = Field(None, gt=0, description="largest Euclidean norm of the combined gradient")

    @model_validator(mode="after")
    def _fits(self) -> Update:
        if self.combine == "sum" and self.lr_scaling == "linear":
            raise ValueError("combine: sum with lr_scaling: linear scales twice; set lr_scaling: none")
        if self.optimizer != "sgd" and (self.momentum or self.nesterov):
            raise ValueError(f"momentum and nesterov belong to sgd, not to {self.optimizer}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class Workload(_Strict):
    """How much is trained, in exactly one of three units."""

    epochs: float | None = Field(None, gt=0, description="passes over the training set")
    samples: int | None = Field(None, gt=0)
    iterations_per_worker: int | None = Field(None, gt=0, description="times workers and batch size, as one pool")

    @model_validator(mode="after")
    def _one(self) -> Workload:
        given = [name for name in ("epochs", "samples", "iterations_per_worker") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of epochs, samples, iterations_per_worker; got {given or 'none'}")
        return self


class Jitter(_Strict):
    """How a worker's step times vary from step to step."""

    distribution: Literal["none", "normal", "lognormal"] = "lognormal"
    sigma: float = Field(0.0, ge=0, le=2, description="standard deviation of the factor (of its logarithm, lognormal)")


Condition = Annotated[str, Field(pattern=r"^!?(in\([^()]+\)|[A-Za-z0-9][A-Za-z0-9_.-]*)$"),
                      AfterValidator(lambda text: text.replace(" ", ""))]  # Ray 2.60 takes the spaces for part of a value
LabelSelector = dict[str, Condition]
"""Ray's: label -> `value`, `!value`, `in(a, b)` or `!in(a, b)`; a node must meet all of them."""


class WorkerGroup(_Strict):
    """Workers that are alike. All resources are of one worker."""

    name: str = Field("worker", pattern=r"^[A-Za-z0-9_.+-]+$")
    count: int = Field(1, ge=1, le=10_000)
    cpus: float = Field(1, ge=0, description="CPUs reserved on the Ray cluster for each")
    gpus: float = Field(0, ge=0, description="GPUs reserved for each: a share below 1, or a whole number")
    devices_per_worker: int | None = Field(None, ge=1, description="replicas of the model, whose gradients are averaged "
                                                                   "before the worker pushes; default: one a GPU")
    accelerator_type: str | None = Field(None, description="of the node's GPUs, as Ray names it: A100, H100, T4, ...")
    label_selector: LabelSelector = Field(default_factory=dict, description="labels of the nodes where they may run")
    fallback_label_selectors: tuple[LabelSelector, ...] = Field((), description="tried in this order, for the whole group, "
                                                                                "if the cluster cannot hold it otherwise")
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict, description="Ray's custom resources")
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16: forward pass under torch's autocast; "
                                                                         "weights and gradients stay float32")
    speed: float = Field(1.0, gt=0, description="emulation: this many times as fast as the step time says")
    step_s: float | None = Field(None, gt=0, description="emulation: seconds a step lasts at speed 1; default: as measured")
    jitter: Jitter = Jitter()

    @model_validator(mode="after")
    def _possible(self) -> WorkerGroup:
        if self.speed > 1 and self.step_s is None:
            raise ValueError("a speed above 1 needs step_s: this machine cannot compute faster than it does")
        if self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"gpus: {self.gpus:g} cannot be had; a share below 1, or a whole number")
        if self.gpus and self.devices_per_worker not in (None, self.devices):
            raise ValueError(f"devices_per_worker: {self.devices_per_worker} with gpus: {self.gpus:g}; a replica has a GPU "
                             f"of its own: gpus: {self.devices_per_worker} (or gpus: 0, to compute on the CPU)")
        if self.accelerator_type is not None and not self.gpus:
            raise ValueError(f"accelerator_type: {self.accelerator_type} needs gpus above 0")
        if reserved := {"CPU", "GPU"} & set(self.resources):
            raise ValueError(f"resources: {min(reserved)} is asked for by {min(reserved).lower()}s")
        if self.fallback_label_selectors and not self.label_selector:
            raise ValueError("fallback_label_selectors: without a label_selector every node is allowed already")
        return self

    @property
    def devices(self) -> int:
        """Replicas that each worker runs."""
        return max(1, int(self.gpus)) if self.devices_per_worker is None or self.gpus else self.devices_per_worker


class EvaluationPlan(_Strict):
    """When the published model is evaluated on the test set, by progress; 0 and 1 are always evaluated."""

    marks: int = Field(20, ge=1, le=1000, description="evaluations spread evenly over the progress, beside the one at 0")
    batch_size: int = Field(1000, gt=0)
    deadline_s: float = Field(600, gt=0, description="an evaluation that takes longer ends the run as failed")
    threads: int | None = Field(None, gt=0, description="torch threads of the evaluator; default: a fair share")

    def progress_marks(self) -> list[float]:
        """The marks, rising, from 0 to 1."""
        return [mark / self.marks for mark in range(self.marks + 1)]


class Cluster(_Strict):
    """Where and how the actors run."""

    address: str = Field("auto", description="of a Ray cluster; local: a private one on this machine; auto: the one that "
                                            "Ray is connected to, or that the command line finds in RAY_ADDRESS (as "
                                            "within a Ray job), otherwise local")
    server_shards: int = Field(1, ge=1, description="the model's flat vector is split evenly among that many servers")
    server_cpus: float = Field(1, ge=0, description="CPUs reserved for each server")
    server_placement: Literal["apart", "with-workers"] = Field(
        "apart", description="apart: resources of their own; with-workers: the n-th server in the place of the n-th worker, "
                             "on its node. The controller sits with the first server")
    server_label_selector: LabelSelector = Field(default_factory=dict, description="labels of the nodes of servers apart")
    evaluator_cpus: float = Field(1, ge=0, description="CPUs reserved for the evaluator")
    evaluator_gpus: float = Field(0, ge=0, le=1, description="GPUs reserved for the evaluator")
    step_deadline_s: float = Field(120, gt=0, description="a worker whose step takes longer is counted as gone; a server "
                                                          "whose update takes longer ends the run as failed")
    placement_deadline_s: float = Field(20, gt=0, description="how long to wait for resources that others use now")
    transport: Literal["object-ref"] = Field("object-ref", description="how gradients and weights travel")
    task_events: bool = Field(False, description="show every step and update in Ray's task list and timeline; costs a few "
                                                 "percent of the throughput of a small model")
    dashboard: bool = Field(False, description="start the Ray dashboard with a private cluster")

    @model_validator(mode="after")
    def _placed(self) -> Cluster:
        if self.server_label_selector and self.server_placement == "with-workers":
            raise ValueError("server_label_selector: servers that are placed with workers go where those go")
        return self


class Experiment(_Strict):
    """One experiment file."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9_.+-]+$", description="folder of its records")
    seed: int = Field(0, ge=0)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="`compare` repeats every paradigm with each")
    engine: Literal["ray"] = "ray"
    model: Choice = Named(name="mlp")
    data: Annotated[Data, BeforeValidator(_named)] = Data()
    paradigm: Rule = ParadigmChoice(name="bsp")
    paradigms: tuple[Rule, ...] = Field(STANDARD_COMPARISON, min_length=1, description="what `compare` compares")
    update: Update = Update()
    workload: Workload = Workload(epochs=1)
    batch_size: int = Field(32, gt=0, description="samples of one worker's iteration")
    workers: tuple[WorkerGroup, ...] = Field((WorkerGroup(count=4),), min_length=1)
    evaluation: EvaluationPlan = EvaluationPlan()
    target_accuracy: float | None = Field(None, gt=0, le=1, description="for the time to accuracy; a fraction of 1")
    target_loss: float | None = Field(None, gt=0, description="for the time to loss; mean cross-entropy in nats")
    cluster: Cluster = Cluster()
    output: Path = Field(Path("runs"), description="records go to OUTPUT/NAME/TIME-PARADIGM-ID/")

    @model_validator(mode="after")
    def _distinct(self) -> Experiment:
        names = [group.name for group in self.workers]
        if len(set(names)) < len(names):
            raise ValueError(f"worker groups need different names, got {names}")
        labels = [choice.label for choice in self.paradigms]
        if len(set(labels)) < len(labels):
            raise ValueError(f"paradigms: each one once, got {', '.join(labels)}")
        for group in self.workers:
            if group.devices > self.batch_size:
                raise ValueError(f"batch_size: {self.batch_size} samples cannot be shared by the {group.devices} devices of "
                                 f"each worker in group {group.name!r}")
        return self

    @property
    def worker_count(self) -> int:
        """Workers of all groups."""
        return sum(group.count for group in self.workers)

    def slots(self) -> dict[str, WorkerGroup]:
        """`group-index` of every worker, in the order of the file."""
        return {f"{group.name}-{index}": group for group in self.workers for index in range(group.count)}

    def workload_samples(self, train_samples: int) -> int:
        """Size of the whole work in samples, for a training set of that size."""
        work = self.workload
        if work.epochs is not None:
            return max(1, round(work.epochs * train_samples))
        if work.samples is not None:
            return work.samples
        assert work.iterations_per_worker is not None
        return self.worker_count * work.iterations_per_worker * self.batch_size

    def to_yaml(self) -> str:
        """The resolved experiment as a file that `load` takes."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def load(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read an experiment file.

    Args:
        path: of a YAML file.
        overrides: `a.b=value`; the value is YAML. A list is entered by index: `workers.0.speed=0.5`.

    Raises:
        ConfigError: there is no such file, it is not YAML, or a setting is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not a text file'}).") from error
    return parse(text, overrides, source=str(path))


def parse(text: str, overrides: Iterable[str] = (), *, source: str) -> Experiment:
    """The experiment in a YAML text; `source` names it in errors."""
    settings = _yaml(text, source)
    if settings is None:
        settings = {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{source}: an experiment file is a mapping of settings, got {type(settings).__name__}.")
    for override in overrides:
        _override(settings, override)
    return validate(settings, source=source)


def validate(settings: Mapping[str, Any], *, source: str = "experiment") -> Experiment:
    """The experiment that plain data describes.

    Raises:
        ConfigError: naming the path of the first setting that is not allowed, its value, and what is.
    """
    try:
        return Experiment.model_validate(dict(settings))
    except ValidationError as error:
        raise _explain(error, source) from error


def _yaml(text: str, source: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{source}: not YAML{line}: {getattr(error, 'problem', None) or 'unreadable'}.") from error


def _override(settings: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {override!r}: write it as key=value or a.b=value.")
    *parents, last = path.split(".")
    here: Any = settings
    for part in parents:
        here = _enter(here, part, override)
    value = _yaml(text, f"--set {override}")
    if isinstance(here, list):
        here[_index(here, last, override)] = value
    elif isinstance(here, dict):
        here[last] = value
    else:
        raise ConfigError(f"--set {override!r}: {here!r} holds no {last!r}.")


def _enter(here: Any, part: str, override: str) -> Any:
    if isinstance(here, list):
        return here[_index(here, part, override)]
    if isinstance(here, dict):
        inner = here.get(part)
        if inner is None or isinstance(inner, str):  # `paradigm: ssp` and --set paradigm.staleness=3
            here[part] = {} if inner is None else {"name": inner}
        return here[part]
    raise ConfigError(f"--set {override!r}: {here!r} holds no {part!r}.")


def _index(items: list[Any], part: str, override: str) -> int:
    if not part.isdecimal() or int(part) >= len(items):
        raise ConfigError(f"--set {override!r}: {part!r} is not an index into a list of {len(items)}.")
    return int(part)


def _explain(error: ValidationError, source: str) -> ConfigError:
    first = error.errors()[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    where = f"{source}: {place}" if place else source
    if first["type"] == "extra_forbidden":
        *parents, key = first["loc"]
        return unknown_name("setting", key, _settings_at(parents), where=where)
    if first["type"] == "value_error":
        return ConfigError(f"{where}: {first['ctx']['error']}")
    given = "" if first["type"] == "missing" else f"; got {first['input']!r}"
    return ConfigError(f"{where}: {first['msg']}{given}.")


def _settings_at(parents: Iterable[str | int]) -> list[str]:
    """Names of the settings of the model at a path that pydantic gave."""
    model: Any = Experiment
    for part in parents:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation)
    return list(model.model_fields)


def _model_in(annotation: Any) -> Any:
    """The model class inside `tuple[Model, ...]` and the like."""
    arguments = getattr(annotation, "__args__", None)
    return _model_in(arguments[0]) if arguments else annotation
