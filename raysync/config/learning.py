"""What is learned, and how: data, update rule, amount of work, evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from raysync.config.base import Strict, by_name


class Data(Strict):
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


class Schedule(Strict):
    """The learning rate as a function of progress (0 at the start, 1 at the end) or of updates."""

    name: Literal["constant", "milestones", "cosine", "inverse-sqrt"] = "constant"
    milestones: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field((), description="progress at which lr drops")
    factor: float = Field(0.1, gt=0, description="of `milestones`: what lr is multiplied by at each")
    warmup: float = Field(0.0, ge=0, lt=1, description="progress up to which lr rises linearly from 0")


class Update(Strict):
    """How the server turns gradients into a new model."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.05, gt=0, description="learning rate of one push")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd only")
    nesterov: bool = Field(False, description="sgd only; needs momentum")
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[Share, Share] = Field((0.9, 0.999), description="adam and adamw only")
    schedule: Annotated[Schedule, BeforeValidator(by_name)] = Schedule()
    lr_scaling: Literal["linear", "none"] = Field("linear", description="linear: times the number of pushes in the update")
    combine: Literal["mean", "sum"] = Field("mean", description="of an update's gradients; mean weighs by samples")
    clip_norm: float | None = Field(None, gt=0, description="largest Euclidean norm of the combined gradient")
    project_radius: float | None = Field(None, gt=0, description="all parameters, as one vector, are kept in the Euclidean "
                                                                 "ball of that radius around 0; one server only")

    @model_validator(mode="after")
    def _fits(self) -> Update:
        if self.combine == "sum" and self.lr_scaling == "linear":
            raise ValueError("combine: sum with lr_scaling: linear scales twice; set lr_scaling: none")
        if self.optimizer != "sgd" and (self.momentum or self.nesterov):
            raise ValueError(f"momentum and nesterov belong to sgd, not to {self.optimizer}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class Workload(Strict):
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


class EvaluationPlan(Strict):
    """When the published model is evaluated on the test set, by progress; 0 and 1 are always evaluated."""

    marks: int = Field(20, ge=1, le=1000, description="evaluations spread evenly over the progress, beside the one at 0")
    batch_size: int = Field(1000, gt=0)
    samples: int | None = Field(None, gt=0, description="use only the first that many test samples, but for the evaluation "
                                                        "at 1, which always takes all; default: all")
    deadline_s: float = Field(600, gt=0, description="an evaluation that takes longer ends the run as failed")
    threads: int | None = Field(None, gt=0, description="torch threads of the evaluator; default: a fair share")

    def progress_marks(self) -> list[float]:
        """The marks, rising, from 0 to 1."""
        return [mark / self.marks for mark in range(self.marks + 1)]
