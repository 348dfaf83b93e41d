"""Optimizers as users write them: one that a server can use, and some that it cannot."""

import torch
from torch.optim import SGD, Optimizer


class SignDescent(Optimizer):
    """Steps of the same length: against the sign of the gradient, after weight decay."""

    def __init__(self, params, lr=0.1, weight_decay=0.0, *, shrink=1.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "shrink": shrink})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.move(parameter, self.direction(parameter.grad), group)

    def direction(self, gradient):
        return gradient.sign()

    def move(self, parameter, direction, group):
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"] * group["shrink"])


class Renamed(SignDescent):
    """It passes all arguments on."""

    def __init__(self, params, **arguments):
        super().__init__(params, **arguments)


class Normalised(SignDescent):
    """Couples the elements of a tensor by its norm."""

    def direction(self, gradient):
        return gradient / gradient.norm()


class ByRows(SignDescent):
    """Elementwise for vectors, but not for matrices."""

    def direction(self, gradient):
        return gradient if gradient.ndim < 2 else gradient - gradient.mean(dim=1, keepdim=True)


class Adaptive(SignDescent):
    """Couples elements only where there is weight decay, as LARS does."""

    def move(self, parameter, direction, group):
        if group["weight_decay"]:
            direction = direction * parameter.norm()
        super().move(parameter, direction, group)


class Noisy(SignDescent):
    """Draws random numbers."""

    def direction(self, gradient):
        return torch.randn_like(gradient)


class Writing(SignDescent):
    """Takes the gradient for its scratch."""

    def direction(self, gradient):
        return gradient.sign_()


class Replacing(SignDescent):
    """Gives each parameter a new tensor."""

    def move(self, parameter, direction, group):
        parameter.data = parameter - group["lr"] * direction


class Forgetful(SGD):
    """Takes the learning rate once, and keeps it elsewhere."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.lr = self.param_groups[0].pop("lr")

    def step(self):
        self.param_groups[0]["lr"] = self.lr
        super().step()
        self.param_groups[0].pop("lr")


class Unpaced(Optimizer):
    """Has no learning rate."""

    def __init__(self, params):
        super().__init__(params, {})
