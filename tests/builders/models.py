"""Models of a user, models alone (without a data set that they learn from), and how a trained one
is measured.
"""

from torch import nn

from raysync.training.evaluation import evaluate
from raysync.training.models.builtin import ModelPlan
from raysync.training.models.initial_model import InitialModel
from raysync.training.preparation import prepare
from raysync.training.tasks.supervised import Classification
from raysync.training.vectors.flat import FlatModel


def built(source, shape, classes, seed=0, tokens=False, **parameters):
    """A registered model, or a user's own, with the initial weights of that seed."""
    plan = ModelPlan(source, parameters, shape, classes, tokens)
    return InitialModel(Classification(plan, None)).build(seed)


def measured(module, record, data=None):
    """Accuracy and loss of a module on the whole test set, evaluated as that record's run did."""
    task = prepare(record.config).task if data is None else Classification(None, data)
    flat, batch_size = FlatModel(module), record.config.evaluation.batch_size
    metrics = evaluate(flat, flat.initial(), task, task.test_set(), batch_size)
    return metrics["accuracy"], metrics["loss"]


def last_measured(record):
    """Accuracy and loss of the last evaluation."""
    return tuple(record.evaluations.iloc[-1][["accuracy", "loss"]])


def half(classes):
    """A user's model that fits the classes only by half."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes // 2))


def line(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


class Large(nn.Sequential):
    """A million parameters, whose weights are used in place."""

    def __init__(self):
        super().__init__(
            nn.Flatten(), nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.Linear(1000, 10)
        )


class BreaksAtAGradient(nn.Linear):
    """Breaks at its third gradient: the trial before the run computes two."""

    gradients = 0

    def forward(self, x):
        if self.training and x.requires_grad:
            self.gradients += 1
            if self.gradients > 2:
                raise ValueError("this layer breaks")
        return super().forward(x)


def breaks_at_a_gradient():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), BreaksAtAGradient(8, 10))
