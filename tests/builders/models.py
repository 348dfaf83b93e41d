"""Models of a user, and how the trained one is measured."""

from torch import nn

from raysync.training.evaluation import evaluate
from raysync.training.flat import FlatModel
from raysync.training.preparation import prepare


def measured(module, record, data=None):
    """Accuracy and loss of a module on the whole test set, evaluated as that record's run did."""
    loaded = prepare(record.config).data if data is None else data
    flat = FlatModel(module)
    return evaluate(flat, flat.initial(), loaded, record.config.evaluation.batch_size)


def last_measured(record):
    """Accuracy and loss of the last evaluation."""
    return tuple(record.evaluations.iloc[-1][["accuracy", "loss"]])


def half(classes):
    """A user's model that fits the classes only by half."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes // 2))


def line(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


class BreaksAtAGradient(nn.Linear):
    """Breaks at its first gradient."""

    def forward(self, x):
        if self.training and x.requires_grad:
            raise ValueError("this layer breaks")
        return super().forward(x)


def breaks_at_a_gradient():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), BreaksAtAGradient(8, 10))
