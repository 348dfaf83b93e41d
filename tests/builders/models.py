"""Models of a user."""

from torch import nn


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
