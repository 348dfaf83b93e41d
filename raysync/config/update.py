"""The settings of the training: data, update, workload, evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator
from typing_extensions import override

from raysync.config.base import Named, Strict, by_name

if TYPE_CHECKING:
    from raysync.config.experiment import Experiment


class Data(Strict):
    """The data set, and how it is shared among the workers."""

    name: str = Field(
        "digits", description="a registered data set, or the user's own package.module:function"
    )
    data_dir: Path | None = Field(
        None, description="folder of torchvision's data sets; downloads go there"
    )
    partition: Literal["iid", "dirichlet", "shared"] = Field(
        "iid",
        description=(
            "how workers share the training set; dirichlet: with other classes for each worker, on"
            " which local steps and stale gradients cost most"
        ),
    )
    alpha: float = Field(
        0.5, gt=0, description="for `dirichlet`: a small value means few classes for each worker"
    )
    augment: Literal["none", "crop-flip"] = Field(
        "none", description="crop-flip: shift by up to 4 pixels, mirror half"
    )
    train_samples: int | None = Field(
        None, gt=0, description="use only the first that many training samples"
    )
    test_samples: int | None = Field(
        None, gt=0, description="use only the first that many test samples"
    )
    validation_samples: int | None = Field(
        None,
        gt=0,
        description=(
            "take that many samples out of the training set, for evaluations; the test set is then"
            " used once, at the end; default: evaluations use the test set"
        ),
    )
    loader_workers: int = Field(
        0,
        ge=0,
        le=1024,
        description=(
            "processes of each worker, and of the evaluator, that read samples ahead, where these"
            " are read one by one; on Ray (virtual runs read in their own process)"
        ),
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="passed to the data set's function"
    )


Share = Annotated[float, Field(ge=0, lt=1)]
# By default, the rate of these optimizers is multiplied by the pushes of an update.
# Their steps are as long as gradients; steps of Adam, RMSprop and the like are as long as their
# rate.
SCALED = ("sgd", "asgd")
OUTER, MUON = ("delayed-nesterov", "mla"), "muon"  # these optimizers of raysync need momentum
MOST_STEPS = 1_000_000
AS_OUTSIDE = "as in `update`; default: the same as there"


class Schedule(Strict):
    """The learning rate as a function of progress (0 at the start, 1 at the end) or of updates."""

    name: Literal["constant", "milestones", "cosine", "inverse-sqrt"] = Field(
        "constant",
        description=(
            "milestones: times `factor` at each; cosine: down to 0 at the end; "
            "inverse-sqrt: divided by the root of the number of the update"
        ),
    )
    milestones: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        (), description="progress at which lr drops"
    )
    factor: float = Field(
        0.1, gt=0, description="for `milestones`: lr is multiplied by this at each"
    )
    warmup: float = Field(
        0.0, ge=0, lt=1, description="progress up to which lr rises linearly from 0"
    )


class MomentumRamp(Strict):
    """The rise of the momentum to its full value, each time that a phase begins.

    With s = progress since then / `over`, up to 1, and m = `momentum`: linear is start + (m -
    start) s, exponential is start (m / start)^s.

    Source: Sync-Switch (Li et al. 2021, figure 8b) compares "techniques used to scale momentum"
    after a switch, and leaves them to an extended report that we do not have. Inferred: an
    unchanged momentum (which the paper uses), none (`momentum: 0`), one over the number of workers
    (asynchrony begets the rest, Mitliagkas et al. 2016), and these ramps; the exponential one is
    our reading of its nonlinear one.
    """

    name: Literal["linear", "exponential"] = Field(description="form of the rise")
    over: float = Field(gt=0, le=1, description="progress that the ramp takes")
    start: float = Field(
        0.0, ge=0, lt=1, description="momentum at the beginning; exponential needs it above 0"
    )

    @model_validator(mode="after")
    def _rises(self) -> MomentumRamp:
        if self.name == "exponential" and not self.start:
            raise ValueError("an exponential ramp needs a start above 0, such as 1 / workers")
        return self


class StalenessScaling(Strict):
    """Divide a push by its version staleness tau: the updates since its weights were made.

    Source: inverse: Zhang et al. 2016, "Staleness-aware Async-SGD" (arXiv:1511.05950); power: Xie
    et al. 2019, FedAsync (arXiv:1903.03934); delay-adaptive: Mishchenko et al. 2022
    (arXiv:2206.07638).
    """

    name: Literal["none", "inverse", "power", "delay-adaptive"] = Field(
        "none",
        description=(
            "inverse: by tau, where it is above 1; power: by (1 + tau)^exponent; delay-adaptive: by"
            " tau / n, where it is above 1, with the number n of workers that take part"
        ),
    )
    exponent: float = Field(0.5, gt=0, le=10, description="for `power`")


class DelayCompensation(Strict):
    """Correct a gradient for the updates since its weights were pulled: DC-ASGD (Zheng et al. 2017,
    arXiv:1609.08326).

    A push's gradient g, computed on the weights x_base, becomes g + lambda g g (x - x_base),
    elementwise, with the current weights x. constant (DC-ASGD-c): lambda = strength. adaptive
    (DC-ASGD-a): lambda = strength / sqrt(MS + 1e-7); each push first changes MS to decay MS + (1 -
    decay) g g.
    """

    name: Literal["constant", "adaptive"] = Field(
        "constant", description="constant: DC-ASGD-c; adaptive: DC-ASGD-a"
    )
    strength: float = Field(0.04, gt=0, description="lambda, or lambda_0")
    decay: Share = Field(0.95, description="for `adaptive`: the decay of MS")


class ParameterGroup(Strict):
    """Parameters of the model with their own update settings. A parameter belongs to the first
    group that matches its name.
    """

    match: tuple[str, ...] = Field(
        min_length=1,
        description=(
            "patterns for names as in `named_parameters()` of the whole model, such as `*.bias`,"
            " `layers.[01].*`; `*`, `?` and `[...]` as in a shell, and `*` matches dots, too"
        ),
    )
    weight_decay: float | None = Field(
        None,
        ge=0,
        description="holds in every phase; default: as in `no_decay`, `update` and its phases",
    )
    lr_factor: float = Field(
        1.0,
        ge=0,
        description="factor of the update's learning rate; 0: these parameters keep their values",
    )


def _short_form(choice: Named) -> str | dict[str, Any]:
    return {"name": choice.name, **choice.parameters} if choice.parameters else choice.name


Optimizer = Annotated[Named, BeforeValidator(by_name), PlainSerializer(_short_form)]


class Phase(Strict):
    """The settings that differ in one phase of a switching paradigm; others keep their values."""

    gone: ClassVar = {"combine": (None, "update.combine holds in every phase")}

    lr: float | None = Field(None, gt=0, description=AS_OUTSIDE)
    momentum: float | None = Field(None, ge=0, lt=1, description=AS_OUTSIDE)
    momentum_ramp: Annotated[MomentumRamp | None, BeforeValidator(by_name)] = Field(
        None, description=AS_OUTSIDE
    )
    weight_decay: float | None = Field(None, ge=0, description=AS_OUTSIDE)
    lr_scaling: Literal["linear", "none", "inverse-root"] | None = Field(
        None, description=AS_OUTSIDE
    )
    clip_norm: float | None = Field(None, gt=0, description=AS_OUTSIDE)


class OptimizerSettings(Strict):
    """An optimizer, and the settings of its steps."""

    optimizer: Optimizer = Field(
        Named(name="sgd"),
        description=(
            "a class of torch.optim that works elementwise (sgd, adamw, RMSprop, ...; capitals do"
            " not matter), muon, delayed-nesterov, mla, or yours: package.module:Class; its"
            " arguments are parameters, except for those that are settings beside it"
        ),
    )
    lr: float = Field(0.05, gt=0, description="learning rate")
    momentum: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "for optimizers with such an argument: sgd, rmsprop, muon, delayed-nesterov, mla (these"
            " three need it above 0)"
        ),
    )
    nesterov: bool = Field(
        False, description="for optimizers with such an argument: sgd, muon; needs momentum"
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="weight decay, as the optimizer defines it, instead of its own default",
    )
    no_decay: Literal["norm-and-bias"] | None = Field(
        None,
        description=(
            "norm-and-bias: no weight decay for biases, normalisation layers, and all other"
            " parameters with fewer than two dimensions (timm's rule); a weight decay in `groups`"
            " takes precedence"
        ),
    )
    groups: tuple[ParameterGroup, ...] = Field(
        (), description="parameters with a weight decay or a learning rate of their own"
    )
    betas: tuple[Share, Share] | None = Field(
        None, description="for optimizers with such an argument: adam, adamw, ...; default: its own"
    )
    schedule: Annotated[Schedule, BeforeValidator(by_name)] = Schedule()
    clip_norm: float | None = Field(None, gt=0, description="largest Euclidean norm of a gradient")

    @property
    def is_muon(self) -> bool:
        """Whether the optimizer is Muon, which steps along whole matrices."""
        return self.optimizer.name.lower() == MUON

    def infeasible_reason(self) -> str:
        """Return why these settings do not go together, or ""."""
        if self.nesterov and not self.momentum:
            return "nesterov needs a momentum above 0"
        if self.optimizer.name.lower() in (*OUTER, MUON) and not self.momentum:
            return f"optimizer: {self.optimizer.name} needs a momentum above 0, such as 0.9"
        return ""


class Local(OptimizerSettings):
    """Local steps: a worker's own optimizer steps between two pushes.

    A worker makes `steps` steps from the weights that it pulled, each on its own batch, and pushes
    the change x_pulled - x_local, with the sign of a gradient. The server makes an outer step with
    the mean of such pushes (`update`): by default SGD with lr 1, so the mean of the workers'
    weights.

    Source: local SGD (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019); with
    AdamW inside and Nesterov momentum outside DiLoCo (Douillard et al. 2023, arXiv:2311.08105).
    """

    steps: int = Field(
        1,
        ge=1,
        le=MOST_STEPS,
        description="H, the steps of an iteration; the paradigm `local` sets it by itself",
    )
    keeps_state: bool = Field(
        True,
        description=(
            "whether a worker's optimizer keeps its state (momentum, moments) after a push;"
            " false: each iteration begins with a new state"
        ),
    )

    @property
    def update(self) -> Update:
        """The same optimizer as settings of an update."""
        given = self.model_dump(exclude={"steps", "keeps_state"}, exclude_unset=True)
        return Update.model_validate(given)

    @model_validator(mode="after")
    def _is_feasible(self) -> Local:
        if why := self.infeasible_reason():
            raise ValueError(why)
        return self


class Update(OptimizerSettings):
    """How the server turns gradients into a new model."""

    optimizer: Optimizer = Field(
        Named(name="sgd"),
        description=(
            "a class of torch.optim that works elementwise (sgd, adamw, RMSprop, ...; capitals do"
            " not matter), or yours: package.module:Class; its arguments are parameters, except for"
            " those that are settings beside it. muon: Muon for the matrices of hidden layers (also"
            " convolutions), AdamW for embeddings, the output layer and all else, with one rate;"
            " adjust_lr_fn: match_rms_adamw (default) or original; one server. Or, for outer steps"
            " (with `local`; without it they take gradients for deltas, as momentum of another"
            " kind), delayed-nesterov"
            " (arXiv:2401.09135): Nesterov momentum that takes in the pushes of `every` updates at"
            " once, lr being that of so many together; `c`, from 0 to 1 / every, spreads it over"
            " them. mla: m = momentum m + (1 - momentum) delta, and a step by lr (momentum m +"
            " delta)"
        ),
    )
    lr: float = Field(
        0.05, gt=0, description="learning rate of one push; default with `local`: 1, outer steps"
    )
    momentum_ramp: Annotated[MomentumRamp | None, BeforeValidator(by_name)] = None
    # Deviation: Sync-Switch's policy, whose figures are of SGD, is linear; a rate of Adam times the
    # workers is not what its user wrote.
    lr_scaling: Literal["linear", "none", "inverse-root"] = Field(
        "linear",
        description=(
            "linear: times the number of pushes in the update, whatever their batch sizes (without"
            " those of weight 0, if a paradigm gives weights); none: the rate as it is;"
            " inverse-root: divided by the root of the number of workers that take part, as"
            " asynchronous local SGD weights its pushes. Default: linear for sgd and asgd; none for"
            " all other optimizers, with `local`, and where the task brings its own (a"
            " LightningModule, a model of Hugging Face)"
        ),
    )
    combine: Literal["mean", "sum"] = Field(
        "mean",
        description=(
            "how an update combines its gradients; mean weights them by samples, or as the paradigm"
            " does; sum multiplies each by the paradigm's weight, if it has one"
        ),
    )
    clip_norm: float | None = Field(
        None, gt=0, description="largest Euclidean norm of the combined gradient"
    )
    project_radius: float | None = Field(
        None,
        gt=0,
        description=(
            "the vector of all parameters is kept in the Euclidean "
            "ball of this radius around 0; one server only"
        ),
    )
    staleness_scaling: Annotated[StalenessScaling, BeforeValidator(by_name)] = StalenessScaling()
    delay_compensation: Annotated[DelayCompensation | None, BeforeValidator(by_name)] = None
    phases: dict[str, Phase] = Field(
        default_factory=dict,
        description=(
            "settings that differ in the phases of a paradigm that switches; the optimizer keeps"
            " its state"
        ),
    )

    def in_phase(self, name: str) -> Update:
        """Return the settings in a phase; without an entry in `phases`, the default ones."""
        changes = self.phases.get(name, Phase()).present
        return self.model_copy(update=changes | {"phases": {}})

    @property
    def clips(self) -> bool:
        """Whether some phase clips the norm of the gradient."""
        return any(self.in_phase(name).clip_norm is not None for name in ("", *self.phases))

    @model_validator(mode="after")
    def _set_default_lr_scaling(self) -> Update:
        is_scaled = self.optimizer.name.lower() in SCALED
        if "lr_scaling" not in self.model_fields_set and not is_scaled:
            # a setting that is changed in this way still counts as not given
            object.__setattr__(self, "lr_scaling", "none")
        return self

    @model_validator(mode="after")
    def _phases_are_feasible(self) -> Update:
        for name in ("", *self.phases):
            if why := self.in_phase(name).infeasible_reason():
                raise ValueError(f"phases.{name}: {why}" if name else why)
        return self

    @override
    def infeasible_reason(self) -> str:
        if self.combine == "sum" and self.lr_scaling == "linear":
            return "combine: sum with lr_scaling: linear scales twice; set lr_scaling: none"
        if why := super().infeasible_reason():
            return why
        if self.momentum_ramp is not None and self.momentum_ramp.start >= self.momentum:
            return (
                f"momentum_ramp: a rise from {self.momentum_ramp.start:g} needs a momentum above"
                f" that, got {self.momentum:g}"
            )
        return ""


class Workload(Strict):
    """The amount of training, in exactly one of three units."""

    epochs: float | None = Field(None, gt=0, le=1e6, description="passes over the training set")
    samples: int | None = Field(None, gt=0, description="total number of samples")
    iterations_per_worker: int | None = Field(
        None, gt=0, description="times the batch sizes of all workers together, as one pool"
    )

    @model_validator(mode="after")
    def _has_one_unit(self) -> Workload:
        if len(units := [*self.present]) != 1:
            raise ValueError(
                "give exactly one of epochs, samples, iterations_per_worker; got "
                f"{' and '.join(units) or 'none'}. "
                "To replace the whole block: --set 'workload={samples: 6000}'"
            )
        return self


class EvaluationPlan(Strict):
    """When the published model is evaluated on the test set, by progress; 0 and 1 are always
    evaluated.
    """

    marks: int = Field(
        20,
        ge=1,
        le=1000,
        description="number of evaluations, spread evenly over the progress, beside the one at 0",
    )
    batch_size: int = Field(1000, gt=0, description="number of samples that are evaluated at once")
    samples: int | None = Field(
        None,
        gt=0,
        description=(
            "use only the first that many test samples, except for the evaluation "
            "at 1, which always uses all; default: all"
        ),
    )
    deadline_s: float = Field(
        600, gt=0, description="an evaluation that takes longer is repeated by a new evaluator"
    )
    last: int = Field(
        1,
        ge=1,
        description=(
            "the final metric (`final_accuracy`, ...) is the mean of so many evaluations at the end"
        ),
    )
    margin: float | None = Field(
        None,
        gt=0,
        description=(
            "final metrics that differ by less are equally good: 0.005 is half a percentage point"
            " of accuracy, and 0.5 % of a perplexity; reports test it by two one-sided tests"
        ),
    )

    @model_validator(mode="after")
    def _has_as_many(self) -> EvaluationPlan:
        if self.last > self.marks:
            raise ValueError(
                f"last: {self.last} evaluations at the end, of the {self.marks} that marks gives;"
                " raise marks"
            )
        return self

    def progress_marks(self) -> list[float]:
        """Return the progress of the evaluations, rising from 0 to 1."""
        return [mark / self.marks for mark in range(self.marks + 1)]


def check_local_steps(experiment: Experiment) -> None:
    """Refuse settings of gradients where pushes are changes of the weights."""
    if experiment.local is None:
        return
    if experiment.update.delay_compensation is not None:
        raise ValueError(
            "update.delay_compensation: it corrects gradients, but with `local` a push is the"
            " change of the weights by local steps; leave it out"
        )
    scalings = {
        f"update.phases.{name}": phase.lr_scaling
        for name, phase in experiment.update.phases.items()
    }
    if "lr_scaling" in experiment.update.model_fields_set:
        scalings["update"] = experiment.update.lr_scaling
    for where, scaling in scalings.items():
        if scaling == "linear":
            raise ValueError(
                f"{where}.lr_scaling: linear: with `local` an update is the mean of the"
                " workers' changes, which does not grow with their number; leave it out"
            )
